// The device's functions for torch's older profiler:
// torch.autograd.profiler.profile(use_device=...) without Kineto. It records an event before and
// after each operator.

#include <c10/core/DeviceGuard.h>
#include <c10/util/ApproximateClock.h>
#include <openreg/event.h>
#include <openreg/range.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <functional>
#include <memory>

#include "csrc/core/BlockingRegion.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {
namespace {

using c10::openreg::BlockingRegion;
using c10::openreg::OpenRegEvent;
using torch::profiler::impl::ProfilerVoidEventStub;

const OpenRegEvent& asEvent(const ProfilerVoidEventStub* event) {
  return *static_cast<const OpenRegEvent*>(event->get());
}

class ProfilerStubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  // docs: profiler-stubs-record
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    const c10::DeviceIndex current = c10::openreg::current_device();
    auto recorded = std::make_shared<OpenRegEvent>(orEventDefault);
    if (device != nullptr) {
      *device = current;
    }
    if (cpu_ns != nullptr) {
      *cpu_ns = c10::getTime();
    }
    recorded->record(c10::openreg::getCurrentOpenRegStream(current));
    *event = std::move(recorded);
  }
  // docs: end

  // In microseconds. Returns 0 with a warning if the stream failed and the times are missing.
  float elapsed(const ProfilerVoidEventStub* start,
                const ProfilerVoidEventStub* end) const override {
    const BlockingRegion region;
    asEvent(start).waitUntilComplete();
    asEvent(end).waitUntilComplete();
    float elapsed_ms = 0;
    OPENREG_WARN_IF_FAILED(
        orEventElapsedTime(&elapsed_ms, asEvent(start).event(), asEvent(end).event()));
    return elapsed_ms * 1000;
  }

  void mark(const char* name) const override { OPENREG_CHECK(orMark(name)); }
  void rangePush(const char* name) const override { OPENREG_CHECK(orRangePush(name, nullptr)); }
  void rangePop() const override { OPENREG_CHECK(orRangePop(nullptr)); }

  bool enabled() const override { return true; }

  void onEachDevice(std::function<void(int)> operation) const override {
    for (c10::DeviceIndex index = 0; index < c10::openreg::device_count(); ++index) {
      const c10::DeviceGuard guard(c10::Device(c10::openreg::kDeviceType, index));
      operation(index);
    }
  }

  void synchronize() const override {
    const BlockingRegion region;
    c10::openreg::synchronizeDevice(c10::openreg::current_device());
  }
};

struct StubsRegistration {
  // Leaked, because torch keeps the pointer.
  StubsRegistration() {
    if (c10::openreg::servesCuda()) {
      torch::profiler::impl::registerCUDAMethods(new ProfilerStubs());
    } else {
      torch::profiler::impl::registerPrivateUse1Methods(new ProfilerStubs());
    }
  }
} stubs_registration;

}  // namespace
}  // namespace at::openreg
