// The device's timer for DistributedDataParallel's log: start and end of each step.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include <array>
#include <memory>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {
namespace {

class DdpTimer : public c10d::Timer {
 public:
  explicit DdpTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    c10d::Timer::record(event);
    const c10::DeviceGuard guard(device_);
    std::unique_ptr<c10::Event>& end = events_.at(static_cast<size_t>(event));
    end = std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    end->record(c10::openreg::getCurrentOpenRegStream(device_.index()).unwrap());
  }

  // Waits on the host for both events. Returns nothing if one is missing or if they belong to
  // different iterations.
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto& first = events_.at(static_cast<size_t>(start));
    const auto& last = events_.at(static_cast<size_t>(end));
    if (first == nullptr || last == nullptr) {
      return std::nullopt;
    }
    const c10::DeviceGuard guard(device_);
    first->synchronize();
    last->synchronize();
    const double elapsed_ms = first->elapsedTime(*last);
    return elapsed_ms < 0 ? std::nullopt : std::optional(static_cast<int64_t>(elapsed_ms * 1e6));
  }

 private:
  const c10::Device device_;
  std::array<std::unique_ptr<c10::Event>, 5> events_;
};

}  // namespace
}  // namespace at::openreg

namespace c10d {
namespace {

// A build with CUDA has registered another one.
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(TimerRegistry, c10::openreg::kDeviceType,
                                       c10::REGISTRY_PREFERRED, at::openreg::DdpTimer)

}  // namespace
}  // namespace c10d
