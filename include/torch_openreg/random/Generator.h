// Random number generators of openreg devices.
//
// Note [Generators on workers]
// The numbers come from a CPU generator inside, so the same seed gives the CPU's numbers. Kernels
// draw from it on the workers:
//   - kernels of one stream draw in stream order;
//   - a kernel on another stream first waits for the stream that drew last (orderLaunch);
//   - whoever reads or sets the state waits for the kernels that draw (every virtual below);
//   - kernels in a graph draw on each replay, from the state they find then: the replay counts as
//     one kernel that draws. So nobody reads or sets the state while the current stream captures.
// Host threads that launch at the same time are not ordered among each other, as on any device;
// a kernel locks the engine while it draws.
//
// Note [Waiting with the generator's mutex]
// torch asks callers to lock a generator's mutex around each of its functions. torch's bindings do,
// all but that of current_seed(), and hold the GIL meanwhile. The wait gives up the GIL. If it kept
// the mutex, a second thread would take the GIL, wait for the mutex and never give the GIL back.
// So the wait gives up the mutex as well, and takes it back when it has the GIL again.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {

class OPENREG_EXPORT OpenRegGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit OpenRegGeneratorImpl(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;  // throws: the algorithm has no offset
  uint64_t get_offset() const override;       // throws
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::openreg::kDeviceType; }

  // Makes what is enqueued on the stream next draw after everything enqueued so far or, in a
  // capture, captured so far.
  void orderLaunch(const c10::openreg::OpenRegStream& stream);

  // Waits for all kernels that draw.
  // Errors: the asynchronous error of their stream.
  void waitForKernels() const;

  // The generator that kernels draw from.
  const Generator& engine() const { return engine_; }

 private:
  OpenRegGeneratorImpl* clone_impl() const override;

  // The same, for functions whose callers have locked the generator's mutex: it is given up for the
  // wait. See Note [Waiting with the generator's mutex].
  void waitForKernelsUnlocked() const;

  Generator engine_;
  mutable std::mutex last_stream_mutex_;
  mutable std::optional<c10::openreg::OpenRegStream> last_stream_;  // the one that drew last
};

// The default generator of a device, created on first use. A negative index stands for the
// current device. Creates no device.
OPENREG_EXPORT const Generator& defaultGenerator(c10::DeviceIndex device = -1);

// The generators that kernels of a capture draw from; forgets them. Called when it has ended.
OPENREG_EXPORT std::vector<c10::intrusive_ptr<OpenRegGeneratorImpl>> takeGeneratorsOfCapture(
    uint64_t capture_id);

// A new generator for a device.
OPENREG_EXPORT Generator makeGenerator(c10::DeviceIndex device = -1);

// The generator that a kernel on the device's current stream draws from: the one given, or the
// device's default. Orders the launch that must follow; see Note [Generators on workers].
// Throws if the generator is not one of the device's.
OPENREG_EXPORT Generator engineForLaunch(const std::optional<Generator>& generator,
                                         c10::DeviceIndex device);

// The same for a kernel that runs on the calling thread: waits for the kernels that draw.
OPENREG_EXPORT Generator engineForHost(const std::optional<Generator>& generator,
                                       c10::DeviceIndex device);

}  // namespace at::openreg
