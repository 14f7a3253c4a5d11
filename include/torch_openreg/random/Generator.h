// Random number generators of openreg devices.
//
// Note [Generators on workers]
// The numbers come from a CPU generator inside, the engine, so the same seed gives the CPU's
// numbers. Kernels draw from it on the workers:
//   - kernels of one stream draw in stream order;
//   - a kernel on another stream first waits for the stream that drew last (engineForLaunch);
//   - whoever sets the seed or the state gives the generator a new engine. Kernels launched before
//     keep the one they were launched with, so nobody waits;
//   - whoever reads the state waits for the kernels that draw;
//   - kernels in a graph draw on each replay, from the state they find then. They use an engine of
//     their own, which beginReplay() and endReplay() pass the state to and from: the replay counts
//     as one kernel that draws. So nobody reads or sets the state while the current stream
//     captures.
// Host threads that launch at the same time are not ordered among each other, as on any device;
// a kernel locks the engine while it draws.
//
// Note [The generator's mutex]
// torch asks callers to lock a generator's mutex around each of its functions. Its Python bindings
// do, with the GIL held; its JIT operators and many C++ callers do not. So no function here touches
// that mutex, and none but get_state(), get_offset() and clone() waits. These keep what their
// caller holds: if they gave up the GIL alone, a second thread would take it, wait for the mutex
// and never give it back. Python programs wait before they call, by torch.openreg.get_rng_state(),
// where neither is held.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"
#include "torch_openreg/core/TorchRelease.h"

namespace at::openreg {

// What a generator draws from. Generators that graphsafe_get_state() made share one.
class OPENREG_EXPORT GeneratorState {
 public:
  GeneratorState(c10::Device device, uint64_t seed);
  GeneratorState(const GeneratorState&) = delete;
  GeneratorState& operator=(const GeneratorState&) = delete;
  ~GeneratorState();

  // The seed that the present engine began with.
  uint64_t seed() const;

  // Puts an engine that nobody has drawn from into the place of the present one.
  void replaceEngine(Generator engine);

  // See Note [Offsets].
  // Errors: RuntimeError if the state is none that the seed leads to.
  uint64_t offset();
  void setOffset(uint64_t offset);

  // The engine for the kernel that is enqueued on the stream next. That draws after everything
  // enqueued so far.
  Generator engineForLaunch(const c10::openreg::OpenRegStream& stream);

  // The engine for the kernels of graphs.
  const Generator& graphEngine() const { return graph_engine_; }

  // Waits for all kernels that draw, and returns the engine that they drew from. Keeps the GIL.
  // Errors: the asynchronous error of their stream.
  Generator waitForKernels() const;

  // Enqueue, on the stream of a graph's launch: what gives the graph's kernels the state, and what
  // takes it back. `engine` is the first's result.
  Generator beginReplay(const c10::openreg::OpenRegStream& stream);
  void endReplay(const c10::openreg::OpenRegStream& stream, const Generator& engine);

 private:
  const c10::Device device_;
  const Generator graph_engine_;  // what the kernels of all graphs draw from, one replay at a time

  struct Current;  // the engine of all other kernels, with its lock
  const std::unique_ptr<Current> current_;
};

// Note [Offsets]
// CUDA's generators count; programs that recompute, such as checkpoints of activations, ask for the
// count and set it. Where the library serves CUDA, the offset of a generator is the number of
// 32-bit numbers that have been drawn since it was seeded. The engine does not count them: they are
// found by drawing from where the offset was last known until the state is the present one, which
// costs a small part of what drawing them cost. An engine also keeps the second number of a pair of
// normal ones, which an offset cannot say: reading the offset drops it, so that what is drawn next
// is what is drawn after the offset has been set.
class OPENREG_EXPORT OpenRegGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit OpenRegGeneratorImpl(c10::DeviceIndex device, uint64_t seed = default_rng_seed_val);
  OpenRegGeneratorImpl(c10::DeviceIndex device, std::shared_ptr<GeneratorState> state);
  ~OpenRegGeneratorImpl() override;

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;  // throws where the library does not serve CUDA
  uint64_t get_offset() const override;       // the same
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
#if OPENREG_TORCH_HAS_PHILOX_STATE
  void philox_state(uint64_t increment, at::Tensor& seed, at::Tensor& offset,
                    at::Tensor& intragraph_offset) override;  // throws
#endif

  // A generator that shares this one's state, and the reverse: takes the state of another one, to
  // share it. Both are allowed in a capture. Kernels of graphs keep the state that they were
  // captured with.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;

  static c10::DeviceType device_type() { return c10::openreg::kDeviceType; }

  // As GeneratorState::engineForLaunch(); in a capture, for the kernel that is captured next.
  Generator engineForLaunch(const c10::openreg::OpenRegStream& stream);

  // As GeneratorState::waitForKernels(), outside of captures.
  Generator waitForKernels() const;

 private:
  OpenRegGeneratorImpl* clone_impl() const override;

  std::shared_ptr<GeneratorState> state() const;

  struct Shared;  // the state, with its lock
  const std::unique_ptr<Shared> shared_;
};

// The default generator of a device. A negative index stands for the current device. Creates no
// device. The first call for a device creates its generator, with a seed from the system's entropy
// as the CPU's default generator has one: processes differ, and so do devices.
OPENREG_EXPORT const Generator& getDefaultOpenRegGenerator(c10::DeviceIndex device = -1);

// What kernels of a capture draw from; forgets it. Called when the capture has ended.
OPENREG_EXPORT std::vector<std::shared_ptr<GeneratorState>> takeGeneratorsOfCapture(
    uint64_t capture_id);

// A new generator for a device, with the seed that torch gives to every new generator.
OPENREG_EXPORT Generator createOpenRegGenerator(c10::DeviceIndex device = -1);

// The generator that a kernel on the device's current stream draws from: the one given, or the
// device's default. Orders the launch that must follow; see Note [Generators on workers].
// Errors: RuntimeError if the generator is of another device.
OPENREG_EXPORT Generator engineForLaunch(const std::optional<Generator>& generator,
                                         c10::DeviceIndex device);

// The same for a kernel that runs on the calling thread: waits for the kernels that draw, without
// the GIL.
OPENREG_EXPORT Generator engineForHost(const std::optional<Generator>& generator,
                                       c10::DeviceIndex device);

}  // namespace at::openreg
