// Step 10 of docs/bring_up.md, times for the profiler. In full:
// csrc/extras/profiler/ProfilerStubs.cpp; kernels in torch's traces are
// csrc/extras/profiler/Kineto.h.
#include <c10/core/DeviceGuard.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <functional>
#include <memory>

#include "../runtime/Event.h"

namespace chip {

using torch::profiler::impl::ProfilerVoidEventStub;

// docs: chip-profiler-stubs
// torch.autograd.profiler.profile(use_device=NAME) records an event before and after each operator,
// and reads the time between the two when the profile is asked for.
struct Stubs final : torch::profiler::impl::ProfilerStubs {
  static c10::Event& eventOf(const ProfilerVoidEventStub* stub) {
    return *static_cast<c10::Event*>(stub->get());
  }

  bool enabled() const override { return true; }
  void record(DeviceIndex* device, ProfilerVoidEventStub* stub, int64_t* cpu_ns) const override {
    const DeviceIndex current = current_device();
    if (device != nullptr) *device = current;
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
    auto event = std::make_shared<c10::Event>(kType, c10::EventFlag::BACKEND_DEFAULT);  // timed
    event->record(currentStream(current));
    *stub = std::move(event);
  }
  float elapsed(const ProfilerVoidEventStub* start,
                const ProfilerVoidEventStub* end) const override {
    eventOf(start).synchronize();
    eventOf(end).synchronize();
    return static_cast<float>(eventOf(start).elapsedTime(eventOf(end)) * 1000);  // microseconds
  }

  // Marks and ranges in the traces of the driver's own tools.
  void mark(const char* name) const override { check(orMark(name)); }
  void rangePush(const char* name) const override { check(orRangePush(name, nullptr)); }
  void rangePop() const override { check(orRangePop(nullptr)); }

  void onEachDevice(std::function<void(int)> call) const override {
    for (DeviceIndex device = 0; device < device_count(); ++device) {
      const c10::DeviceGuard guard(Device(kType, device));
      call(device);
    }
  }
  void synchronize() const override {
    wait([] { return orDeviceSynchronizeIndex(current_device()); });
  }
};

// torch keeps them.
static const bool are_registered =
    (torch::profiler::impl::registerPrivateUse1Methods(new Stubs), true);
// docs: end

}  // namespace chip
