// One session of torch.profiler, from its configuration by Kineto to the result.
//
// Note [Three kinds of id]
//   correlation id   the runtime's: of a call, and of the work that it submitted
//   external id      torch's: of the operator that made the call; 0 is a valid one
//   user id          torch's: of a record_function block; it contains operators and calls
// Kineto pushes the last two while operators and blocks run. The runtime adds the innermost
// external id to submitted work; blocks are recorded here with their times.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/extras/profiler/Annotations.h"
#include "csrc/extras/profiler/Kineto.h"
#include "csrc/extras/profiler/TraceBuilder.h"
#include "csrc/extras/profiler/TraceClock.h"
#include "torch_openreg/core/TorchRelease.h"

namespace at::openreg {

class TraceSession final : public libkineto::IActivityProfilerSession {
 public:
  // Records nothing before start().
  explicit TraceSession(const std::set<libkineto::ActivityType>& types);
  ~TraceSession() override;

  void start() override;
  void stop() override;
  std::vector<std::string> errors() override;

#if OPENREG_TORCH_HAS_DYNAMIC_COLLECTION
  // Pauses and resumes the recording that start() has begun.
  void toggleCollectionDynamic(bool enable) override;
#endif

  // Kineto calls the second overload. The first one has no window and no operators.
  void processTrace(libkineto::ActivityLogger& logger) override;
  void processTrace(libkineto::ActivityLogger& logger,
                    libkineto::getLinkedActivityCallback find_operator, int64_t start_ns,
                    int64_t end_ns) override;

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override;
  std::vector<libkineto::ResourceInfo> getResourceInfos() override;
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override;
  std::string getDeviceProperties() override;

  // Called on every thread that runs operators, between configuration and reset.
  void pushCorrelationId(uint64_t id) override;
  void popCorrelationId() override;
  void pushUserCorrelationId(uint64_t id) override;
  void popUserCorrelationId() override;

 private:
  struct ThreadState;
  ThreadState& threadState();

  const uint64_t number_;  // of the session
  const std::set<libkineto::ActivityType> types_;
  TraceClock clock_;
  std::vector<std::string> errors_;
  std::unique_ptr<TraceBuilder> result_;

  c10::openreg::Mutex mutex_;
  std::vector<Annotation> blocks_ OPENREG_GUARDED_BY(mutex_);
};

}  // namespace at::openreg
