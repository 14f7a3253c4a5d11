// Converts activity records of the runtime to activities of Kineto.
#pragma once

#include <openreg/trace.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/extras/profiler/Annotations.h"
#include "csrc/extras/profiler/Kineto.h"
#include "csrc/extras/profiler/TraceClock.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {

// The activity type of host threads: calls of the runtime, ranges and marks. torch's own
// annotations have a separate type, and torch warns about unknown types.
inline const libkineto::ActivityType kCallActivity =
    c10::openreg::servesCuda() ? libkineto::ActivityType::CUDA_RUNTIME
                               : libkineto::ActivityType::PRIVATEUSE1_RUNTIME;
inline const libkineto::ActivityType kRangeActivity =
    c10::openreg::servesCuda() ? libkineto::ActivityType::CUDA_DRIVER
                               : libkineto::ActivityType::PRIVATEUSE1_DRIVER;

// The time range that a trace shows. Times are Kineto's.
struct TraceWindow {
  int64_t start_ns;
  int64_t end_ns;
};

// Note [Rows of a trace]
// A device is shown as a process, a stream as one of its threads. A call is on the row of the host
// thread that made it. An arrow leads from a call to the work that it submitted, if the trace has
// both. Activities that are partly outside of the window are omitted.
class TraceBuilder {
 public:
  TraceBuilder(const std::set<libkineto::ActivityType>& types, TraceClock clock, TraceWindow window,
               libkineto::getLinkedActivityCallback find_operator);

  // Builds the activities. Call once.
  void build(const std::vector<orActivityRecord>& records, const AnnotationIndex& annotations);

  // Passes the activities to Kineto, which reads them until the buffer is destroyed.
  void log(libkineto::ActivityLogger& logger) const;
  std::unique_ptr<libkineto::CpuTraceBuffer> takeBuffer() { return std::move(buffer_); }

  // Devices, and pairs of device and stream, that have activities.
  const std::set<int>& devices() const { return devices_; }
  const std::set<std::pair<int, int>>& streams() const { return streams_; }

 private:
  struct Span {
    int64_t start_ns;
    int64_t end_ns;
  };

  bool isInWindow(const orActivityRecord& record) const;
  // Work is shown only with its call: a session that ends may truncate a call whose work has
  // already ended.
  bool isShown(const orActivityRecord& record) const;
  libkineto::GenericTraceActivity& add(libkineto::ActivityType type, const std::string& name,
                                       Span span);
  void addCall(const orActivityRecord& record);
  void addWork(const orActivityRecord& record);
  void addAnnotations(const std::vector<orActivityRecord>& records,
                      const AnnotationIndex& annotations);
  void link(libkineto::GenericTraceActivity& activity, const orActivityRecord& record) const;
  void connect(libkineto::GenericTraceActivity& activity, uint64_t correlation_id, bool is_start);
  std::string textOf(const Annotation& annotation) const;

  const std::set<libkineto::ActivityType> types_;
  const TraceClock clock_;
  const TraceWindow window_;
  const libkineto::getLinkedActivityCallback find_operator_;
  const int process_id_;

  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::unordered_map<uint64_t, const orActivityRecord*> calls_;  // by correlation id
  std::set<uint64_t> connected_;  // correlation ids with a call and work that are both shown
  std::set<int> devices_;
  std::set<std::pair<int, int>> streams_;
};

}  // namespace at::openreg
