// Random number generators of openreg devices.
//
// Note [Generators on workers]
// A generator contains a CPU generator, the engine, so the same seed gives the CPU's numbers.
// Kernels draw from it on the workers:
//   - kernels of one stream draw in stream order;
//   - a kernel on another stream first waits for the stream that drew last (engineForLaunch);
//   - setting the seed or the state replaces the engine. Kernels launched before keep the engine
//     with which they were launched, so setting does not wait;
//   - reading the state waits for the kernels that draw;
//   - kernels in a graph draw in each replay, from the state at that time. They use a separate
//     engine, to and from which the replay copies the state: it counts as one kernel that draws. So
//     the state cannot be read or set while the current stream captures.
//
// Concurrent launches of host threads are not ordered, as on any device; a kernel locks the engine
// while it draws.
//
// Note [The generator's mutex]
// torch requires callers to lock a generator's mutex around each of its functions. Its Python
// bindings do so with the GIL held; its JIT operators and many C++ callers do not. So no function
// here uses that mutex, and only get_state(), get_offset() and clone() wait. These release nothing
// that their caller holds: if they released only the GIL, a second thread would take it, wait for
// the mutex, and never release it. Python programs therefore wait before the call, by
// torch.openreg.get_rng_state(), where neither is held.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"
#include "torch_openreg/core/TorchRelease.h"

namespace at::openreg {

class GeneratorState;

// What the state of a generator is to programs of another device type than the backend's own, which
// know its bytes and an offset. Each GeneratorState has an object, which may keep what it knows of
// the state. Any thread may call the functions.
class OPENREG_EXPORT GeneratorFormat {
 public:
  GeneratorFormat() = default;
  GeneratorFormat(const GeneratorFormat&) = delete;
  GeneratorFormat& operator=(const GeneratorFormat&) = delete;
  virtual ~GeneratorFormat();

  virtual uint64_t offset(GeneratorState& state) = 0;
  virtual void setOffset(GeneratorState& state, uint64_t offset) = 0;

  // The state as a tensor of bytes on the CPU.
  virtual c10::intrusive_ptr<c10::TensorImpl> read(GeneratorState& state) = 0;
  virtual void write(GeneratorState& state, const c10::TensorImpl& bytes) = 0;

  // The error of a function of torch's generator that is called during a capture.
  virtual std::string textInCapture(c10::Device device, const char* function) const = 0;
};

// Installs it, before the static objects of the library (csrc/core/DeviceForm.h).
using MakeGeneratorFormat = std::unique_ptr<GeneratorFormat> (*)();
OPENREG_EXPORT void setGeneratorFormat(MakeGeneratorFormat make) noexcept;

// The state from which a generator draws. Generators made by graphsafe_get_state() share one.
class OPENREG_EXPORT GeneratorState {
 public:
  GeneratorState(c10::Device device, uint64_t seed);
  GeneratorState(const GeneratorState&) = delete;
  GeneratorState& operator=(const GeneratorState&) = delete;
  ~GeneratorState();

  c10::Device device() const { return device_; }

  // The seed of the current engine.
  uint64_t seed() const;

  // Replaces the current engine by one that has not been used.
  void replaceEngine(Generator engine);

  // What the state is to programs, if it is not that of the engine; else null.
  GeneratorFormat* format() const { return format_.get(); }

  // The engine for the next kernel that is enqueued on the stream. It draws after all kernels
  // enqueued so far.
  Generator engineForLaunch(const c10::openreg::OpenRegStream& stream);

  // Waits for all kernels that draw, and returns the engine that they used. Keeps the GIL.
  // Errors: the asynchronous error of their stream.
  Generator waitForKernels() const;

 private:
  const c10::Device device_;
  const std::unique_ptr<GeneratorFormat> format_;

  struct Current;  // the engine, with its lock
  const std::unique_ptr<Current> current_;
};

class OPENREG_EXPORT OpenRegGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit OpenRegGeneratorImpl(c10::DeviceIndex device, uint64_t seed = default_rng_seed_val);
  OpenRegGeneratorImpl(c10::DeviceIndex device, std::shared_ptr<GeneratorState> state);
  ~OpenRegGeneratorImpl() override;

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;  // throws unless there is a GeneratorFormat
  uint64_t get_offset() const override;       // the same
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
#if OPENREG_TORCH_HAS_PHILOX_STATE
  void philox_state(uint64_t increment, at::Tensor& seed, at::Tensor& offset,
                    at::Tensor& intragraph_offset) override;  // throws
#endif

  // The first returns a generator that shares this one's state; the second makes this one share the
  // state of another. Both are allowed in a capture. Kernels of graphs keep the state with which
  // they were captured.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;

  static c10::DeviceType device_type() { return c10::openreg::kDeviceType; }

  // As GeneratorState::engineForLaunch(); in a capture, for the next captured kernel.
  Generator engineForLaunch(const c10::openreg::OpenRegStream& stream);

  // As GeneratorState::waitForKernels(), outside of captures.
  Generator waitForKernels() const;

 private:
  OpenRegGeneratorImpl* clone_impl() const override;

  std::shared_ptr<GeneratorState> state() const;

  // The state, for a function of torch's generator. Errors: RuntimeError if the current stream
  // captures.
  std::shared_ptr<GeneratorState> usableState(const char* function) const;

  struct Shared;  // the state, with its lock
  const std::unique_ptr<Shared> shared_;
};

// The default generator of a device. A negative index means the current device. Creates no device.
// The first call for a device creates its generator, with a random seed as for the CPU's default
// generator: it differs between processes and devices.
OPENREG_EXPORT const Generator& getDefaultOpenRegGenerator(c10::DeviceIndex device = -1);

// Returns the engine for a kernel that the stream captures, and orders it after the kernels of the
// capture that draw from the same state. `capture_id` is that of the stream.
using CapturedEngine = Generator (*)(const std::shared_ptr<GeneratorState>& state,
                                     const c10::openreg::OpenRegStream& stream,
                                     uint64_t capture_id);

// Installs it: for what makes captures, while the library is loaded.
OPENREG_EXPORT void setCapturedEngine(CapturedEngine function);

// A new generator for a device, with torch's default seed for new generators.
OPENREG_EXPORT Generator createOpenRegGenerator(c10::DeviceIndex device = -1);

// The engine for a kernel on the device's current stream: that of the given generator, or of the
// device's default. Orders the launch, which must follow; see Note [Generators on workers]. As for
// CUDA, the given generator may belong to another openreg device.
// Errors: RuntimeError if the generator belongs to a device of another type.
OPENREG_EXPORT Generator engineForLaunch(const std::optional<Generator>& generator,
                                         c10::DeviceIndex device);

// The same for a kernel that runs on the calling thread: waits for the kernels that draw, without
// the GIL.
OPENREG_EXPORT Generator engineForHost(const std::optional<Generator>& generator,
                                       c10::DeviceIndex device);

}  // namespace at::openreg
