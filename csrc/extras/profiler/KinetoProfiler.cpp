// Registers the backend with Kineto, which creates a session whenever torch.profiler prepares one.

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>

#include "csrc/core/DeviceName.h"
#include "csrc/extras/profiler/Kineto.h"
#include "csrc/extras/profiler/TraceSession.h"

// After Kineto.h, which defines USE_KINETO.
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

namespace at::openreg {
namespace {

using libkineto::ActivityType;
using Session = std::unique_ptr<libkineto::IActivityProfilerSession>;

class KinetoProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }

  const std::set<ActivityType>& availableActivities() const override { return available_; }

  // No session if no activity of the device is requested.
  Session configure(const std::set<ActivityType>& types,
                    const libkineto::Config& /*config*/) override {
    std::set<ActivityType> ours;
    std::set_intersection(types.begin(), types.end(), available_.begin(), available_.end(),
                          std::inserter(ours, ours.end()));
    return ours.empty() ? nullptr : std::make_unique<TraceSession>(ours);
  }

  // Kineto starts and stops the session itself, also with a time plan.
  Session configure(int64_t /*start_ms*/, int64_t /*duration_ms*/,
                    const std::set<ActivityType>& types, const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = c10::openreg::kTypeName;
  const std::set<ActivityType> available_{
      ActivityType::CONCURRENT_KERNEL,
      ActivityType::GPU_MEMCPY,
      ActivityType::GPU_MEMSET,
      ActivityType::GPU_USER_ANNOTATION,
      kCallActivity,
      kRangeActivity,
  };
};

// docs: profiler-register
struct ProfilerRegistration {
  ProfilerRegistration() {
    auto& registry = torch::profiler::impl::PrivateUse1ProfilerRegistry::instance();
    registry.registerFactory([] { return std::make_unique<KinetoProfiler>(); });
    // `import torch` has initialized Kineto. torch passes the factory on when a program first asks
    // for PrivateUse1's activity; the calls of a profile before, of the CPU alone, would be
    // missing.
    registry.onKinetoInit();
  }
} registration;
// docs: end

}  // namespace
}  // namespace at::openreg
