#include "csrc/extras/profiler/TraceBuilder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "csrc/core/DeviceName.h"

namespace at::openreg {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using libkineto::ITraceActivity;

bool isWork(const orActivityRecord& record) {
  constexpr unsigned kWork =
      orActivityKernel | orActivityMemcpy | orActivityMemset | orActivityHostFunc;
  return (record.kind & kWork) != 0;
}

ActivityType typeOf(const orActivityRecord& record) {
  switch (record.kind) {
    case orActivityMemcpy:
      return ActivityType::GPU_MEMCPY;
    case orActivityMemset:
      return ActivityType::GPU_MEMSET;
    case orActivityKernel:
    case orActivityHostFunc:
      return ActivityType::CONCURRENT_KERNEL;
    case orActivityRange:
    case orActivityMark:
      return kRangeActivity;
    default:
      return kCallActivity;
  }
}

int streamOf(const orActivityRecord& record) { return static_cast<int>(record.stream_id); }

// Kineto writes names into the file unescaped; these characters would end the string.
std::string printable(std::string name) {
  for (char& one : name) {
    if (one == '"' || one == '\\') {
      one = '\'';
    } else if (static_cast<unsigned char>(one) < ' ') {
      one = ' ';
    }
  }
  return name;
}

// Kineto writes a value unescaped, so a number must be valid JSON in every locale.
std::string microseconds(int64_t ns) {
  return fmt::format("{:.3f}", static_cast<double>(ns) / 1e3);
}

// Bytes per nanosecond are gigabytes per second.
std::string gigabytesPerSecond(const orActivityRecord& record) {
  const int64_t duration_ns = std::max<int64_t>(record.end_ns - record.start_ns, 1);
  return fmt::format("{:.6g}",
                     static_cast<double>(record.bytes) / static_cast<double>(duration_ns));
}

}  // namespace

TraceBuilder::TraceBuilder(const std::set<ActivityType>& types, TraceClock clock,
                           TraceWindow window, libkineto::getLinkedActivityCallback find_operator)
    : types_(types),
      clock_(clock),
      window_(window),
      find_operator_(std::move(find_operator)),
      process_id_(static_cast<int>(getpid())),
      buffer_(std::make_unique<libkineto::CpuTraceBuffer>()) {
  buffer_->span = libkineto::TraceSpan(window.start_ns, window.end_ns, c10::openreg::kTypeName);
  buffer_->gpuOpCount = 0;
}

void TraceBuilder::build(const std::vector<orActivityRecord>& records,
                         const AnnotationIndex& annotations) {
  for (const orActivityRecord& record : records) {
    if (record.kind == orActivityRuntime) {
      calls_.emplace(record.correlation_id, &record);
    }
  }
  for (const orActivityRecord& record : records) {
    // The window also contains the call of work that is shown.
    if (isWork(record) && isShown(record) && types_.count(kCallActivity) != 0) {
      connected_.insert(record.correlation_id);
    }
  }
  for (const orActivityRecord& record : records) {
    if (!isShown(record)) {
      continue;
    }
    if (isWork(record)) {
      addWork(record);
    } else {
      addCall(record);
    }
  }
  if (types_.count(ActivityType::GPU_USER_ANNOTATION) != 0) {
    addAnnotations(records, annotations);
  }
}

bool TraceBuilder::isInWindow(const orActivityRecord& record) const {
  return clock_.toEpochNs(record.start_ns) >= window_.start_ns &&
         clock_.toEpochNs(record.end_ns) <= window_.end_ns;
}

bool TraceBuilder::isShown(const orActivityRecord& record) const {
  if (types_.count(typeOf(record)) == 0 || !isInWindow(record)) {
    return false;
  }
  if (!isWork(record)) {
    return true;
  }
  const auto call = calls_.find(record.correlation_id);
  return call != calls_.end() && isInWindow(*call->second);
}

GenericTraceActivity& TraceBuilder::add(ActivityType type, const std::string& name, Span span) {
  buffer_->emplace_activity(buffer_->span, type, printable(name));
  GenericTraceActivity& activity = *buffer_->activities.back();
  activity.startTime = clock_.toEpochNs(span.start_ns);
  activity.endTime = clock_.toEpochNs(span.end_ns);
  return activity;
}

// Adds an activity of a host thread: a call, a wait, a range.
void TraceBuilder::addCall(const orActivityRecord& record) {
  GenericTraceActivity& activity =
      add(typeOf(record), record.name, {record.start_ns, record.end_ns});
  activity.device = process_id_;
  activity.resource = record.thread_id;
  activity.threadId = record.thread_id;
  link(activity, record);
  if (record.kind == orActivityRange || record.kind == orActivityMark) {
    return;
  }
  activity.addMetadata("correlation", record.correlation_id);
  if (record.device >= 0) {
    activity.addMetadata("device", record.device);
  }
  if (record.stream_id != UINT64_MAX) {
    activity.addMetadata("stream", record.stream_id);
  }
  if (record.kind == orActivityMemory) {
    activity.addMetadata("bytes", record.bytes);
    activity.addMetadata("address", record.address);
  }
  if (connected_.count(record.correlation_id) != 0) {
    connect(activity, record.correlation_id, /*is_start=*/true);
  }
}

// Adds an activity of a stream.
void TraceBuilder::addWork(const orActivityRecord& record) {
  GenericTraceActivity& activity =
      add(typeOf(record), record.name, {record.start_ns, record.end_ns});
  activity.device = record.device;
  activity.resource = streamOf(record);
  activity.threadId = record.thread_id;
  devices_.insert(record.device);
  streams_.emplace(record.device, streamOf(record));
  link(activity, *calls_.at(record.correlation_id));
  activity.addMetadata("correlation", record.correlation_id);
  activity.addMetadata("device", record.device);
  activity.addMetadata("stream", record.stream_id);
  activity.addMetadata("queued", clock_.toEpochNs(record.submit_ns));
  activity.addMetadata("queue delay (us)", microseconds(record.start_ns - record.submit_ns));
  if (record.kind == orActivityMemcpy || record.kind == orActivityMemset) {
    activity.addMetadata("bytes", record.bytes);
    activity.addMetadata("memory bandwidth (GB/s)", gigabytesPerSecond(record));
  }
  if (record.peer_device >= 0) {
    activity.addMetadata("peer device", record.peer_device);
  }
  if (connected_.count(record.correlation_id) != 0) {
    connect(activity, record.correlation_id, /*is_start=*/false);
  }
}

// An annotation spans, on each stream, the work of the calls that were made while it was open.
void TraceBuilder::addAnnotations(const std::vector<orActivityRecord>& records,
                                  const AnnotationIndex& annotations) {
  std::map<std::tuple<size_t, int, int>, Span> spans;  // annotation, device, stream
  for (const orActivityRecord& record : records) {
    const auto call = calls_.find(record.correlation_id);
    if (!isWork(record) || call == calls_.end() || !isShown(record)) {
      continue;
    }
    for (const size_t index : annotations.openAt(call->second->thread_id, call->second->start_ns)) {
      const auto [span, is_new] = spans.try_emplace({index, record.device, streamOf(record)},
                                                    Span{record.start_ns, record.end_ns});
      span->second.start_ns = std::min(span->second.start_ns, record.start_ns);
      span->second.end_ns = std::max(span->second.end_ns, record.end_ns);
    }
  }
  for (const auto& [key, span] : spans) {
    const auto& [index, device, stream] = key;
    const std::string name = textOf(annotations[index]);
    if (name.empty()) {
      continue;  // torch did not record the annotation
    }
    GenericTraceActivity& activity = add(ActivityType::GPU_USER_ANNOTATION, name, span);
    activity.device = device;
    activity.resource = stream;
    activity.id = static_cast<int32_t>(annotations[index].torch_id);
  }
}

// docs: profiler-link
// Links an activity to the operator with its external id. The id of an activity without an operator
// must stay 0: torch treats every other value as an operator's id.
void TraceBuilder::link(GenericTraceActivity& activity, const orActivityRecord& record) const {
  if (record.has_external_id == 0) {
    return;
  }
  // Kineto keeps 32 bits of torch's ids.
  const ITraceActivity* linked = find_operator_(static_cast<int32_t>(record.external_id));
  if (linked != nullptr) {
    activity.linked = linked;
    activity.id = static_cast<int32_t>(record.correlation_id);
  }
}

void TraceBuilder::connect(GenericTraceActivity& activity, uint64_t correlation_id, bool is_start) {
  activity.flow.id = static_cast<uint32_t>(correlation_id);
  activity.flow.type = libkineto::kLinkAsyncCpuGpu;
  activity.flow.start = is_start ? 1 : 0;
}
// docs: end

std::string TraceBuilder::textOf(const Annotation& annotation) const {
  if (annotation.torch_id == 0) {
    return annotation.name;
  }
  const ITraceActivity* block = find_operator_(static_cast<int32_t>(annotation.torch_id));
  return block == nullptr ? std::string() : block->name();
}

void TraceBuilder::log(libkineto::ActivityLogger& logger) const {
  for (const std::unique_ptr<GenericTraceActivity>& activity : buffer_->activities) {
    logger.handleGenericActivity(*activity);
  }
}

}  // namespace at::openreg
