#include "csrc/extras/profiler/TraceSession.h"

#include <openreg/device.h>
#include <openreg/range.h>
#include <openreg/trace.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "csrc/core/DeviceForm.h"
#include "csrc/core/DeviceName.h"
#include "csrc/extras/profiler/Collection.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/TorchRelease.h"

namespace at::openreg {
namespace {

using libkineto::ActivityType;

// The runtime's record kinds for a session with these types. Calls are always included, because
// they link work to its operator.
unsigned kindsFor(const std::set<ActivityType>& types) {
  unsigned kinds = orActivityRuntime;
  const auto add = [&](ActivityType type, unsigned more) {
    kinds |= types.count(type) != 0 ? more : 0;
  };
  add(ActivityType::CONCURRENT_KERNEL, orActivityKernel | orActivityHostFunc);
  add(ActivityType::GPU_MEMCPY, orActivityMemcpy);
  add(ActivityType::GPU_MEMSET, orActivityMemset);
  add(ActivityType::GPU_USER_ANNOTATION, orActivityRange);
  add(kCallActivity, orActivitySynchronize | orActivityMemory);
  add(kRangeActivity, orActivityRange | orActivityMark);
  return kinds;
}

// Whether the profile that starts records an event before and after each operator. Then, as for
// CUDA, Kineto records no activity of the device; its records would be those of these events.
bool isMeasuredByEvents() {
  using torch::profiler::impl::ProfilerState;
  using torch::profiler::impl::ProfilerStateBase;
#if OPENREG_TORCH_HAS_OWNED_PROFILER_STATE
  const std::shared_ptr<ProfilerStateBase> of_process = ProfilerStateBase::getGlobal();
  const auto* profile = of_process != nullptr ? of_process.get() : ProfilerStateBase::getTLS();
#else
  const auto* profile = ProfilerStateBase::get();
#endif
  const ProfilerState state =
      profile != nullptr ? profile->config().state : ProfilerState::Disabled;
  return state == ProfilerState::KINETO_GPU_FALLBACK ||
         state == ProfilerState::KINETO_PRIVATEUSE1_FALLBACK;
}

libkineto::DeviceInfo describeDevice(int device) {
  const c10::Device named(c10::openreg::kDeviceType, static_cast<c10::DeviceIndex>(device));
  const int64_t sort_index = libkineto::kExceedMaxPid + device;  // below the rows of host threads
  return {device, sort_index, named.str(), c10::openreg::deviceName()};
}

// Escapes text for a JSON string, because Kineto does not.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char one : text) {
    if (one == '"' || one == '\\') {
      result += '\\';
    }
    result += static_cast<unsigned char>(one) < ' ' ? ' ' : one;
  }
  return result;
}

}  // namespace

// The ids that a thread has pushed and not popped. Sessions may end while operators run on other
// threads, so a pop may come without its push, or be missing: the counts belong to one session, and
// those of an earlier one are dropped.
struct TraceSession::ThreadState {
  uint64_t session = 0;
  size_t external_ids = 0;
  std::vector<size_t> blocks;  // indexes in the session's blocks_

  void beginSession(uint64_t number) {
    if (session == number) {
      return;
    }
    for (; external_ids > 0; --external_ids) {
      uint64_t id = 0;
      std::ignore = orTracePopExternalId(&id);
    }
    blocks.clear();
    session = number;
  }
};

TraceSession::ThreadState& TraceSession::threadState() {
  static thread_local ThreadState state;
  state.beginSession(number_);
  return state;
}

TraceSession::TraceSession(const std::set<ActivityType>& types)
    : number_(Collection::nextSession()), types_(types) {}

TraceSession::~TraceSession() { stop(); }

void TraceSession::start() {
  if (isMeasuredByEvents()) {
    return;
  }
  clock_ = TraceClock::measure();
  try {
    Collection::begin(number_, kindsFor(types_));
    status_ = libkineto::TraceStatus::RECORDING;
  } catch (const c10::Error& error) {
    // In a forked process: it has no device work, but can profile the CPU.
    errors_.emplace_back(error.what_without_backtrace());
    status_ = libkineto::TraceStatus::ERROR;
  }
}

void TraceSession::stop() {
  if (status_ == libkineto::TraceStatus::RECORDING) {
    // If another session took the trace, its records must not be used.
    status_ = Collection::end(number_) ? libkineto::TraceStatus::PROCESSING
                                       : libkineto::TraceStatus::ERROR;
  }
}

std::vector<std::string> TraceSession::errors() { return errors_; }

#if OPENREG_TORCH_HAS_DYNAMIC_COLLECTION
void TraceSession::toggleCollectionDynamic(bool enable) {
  if (status_ == libkineto::TraceStatus::RECORDING) {
    enable ? Collection::resume() : Collection::pause();
  }
}
#endif

void TraceSession::processTrace(libkineto::ActivityLogger& logger) {
  const auto find_nothing = [](int32_t) -> const libkineto::ITraceActivity* { return nullptr; };
  processTrace(logger, find_nothing, 0, Annotation::kOpen);
}

void TraceSession::processTrace(libkineto::ActivityLogger& logger,
                                libkineto::getLinkedActivityCallback find_operator,
                                int64_t start_ns, int64_t end_ns) {
  if (status_ != libkineto::TraceStatus::PROCESSING) {
    return;
  }
  const std::vector<orActivityRecord> records = Collection::takeRecords();
  std::vector<Annotation> annotations;
  {
    const c10::openreg::Lock lock(mutex_);
    annotations = blocks_;
  }
  for (const orActivityRecord& record : records) {
    if (record.kind == orActivityRange) {
      annotations.push_back({.thread_id = record.thread_id,
                             .start_ns = record.start_ns,
                             .end_ns = record.end_ns,
                             .torch_id = 0,
                             .name = record.name});
    }
  }
  result_ = std::make_unique<TraceBuilder>(types_, clock_, TraceWindow{start_ns, end_ns},
                                           std::move(find_operator));
  result_->build(records, AnnotationIndex(std::move(annotations)));
  result_->log(logger);
  // Kineto queries the description of one device only, see getDeviceInfo().
  for (const int device : result_->devices()) {
    if (device != *result_->devices().begin()) {
      logger.handleDeviceInfo(describeDevice(device), start_ns);
    }
  }
  status_ = libkineto::TraceStatus::READY;
}

std::unique_ptr<libkineto::DeviceInfo> TraceSession::getDeviceInfo() {
  if (result_ == nullptr || result_->devices().empty()) {
    return nullptr;
  }
  return std::make_unique<libkineto::DeviceInfo>(describeDevice(*result_->devices().begin()));
}

std::vector<libkineto::ResourceInfo> TraceSession::getResourceInfos() {
  std::vector<libkineto::ResourceInfo> rows;
  if (result_ != nullptr) {
    for (const auto& [device, stream] : result_->streams()) {
      rows.push_back(
          {stream, stream, device, c10::str("stream ", stream, stream == 0 ? " (default)" : "")});
    }
  }
  return rows;
}

std::unique_ptr<libkineto::CpuTraceBuffer> TraceSession::getTraceBuffer() {
  return result_ == nullptr ? nullptr : result_->takeBuffer();
}

std::string TraceSession::getDeviceProperties() {
  std::string objects;
  int count = 0;
  if (orGetDeviceCount(&count) != orSuccess) {
    return objects;
  }
  for (int device = 0; device < count; ++device) {
    orDeviceProp properties{};
    if (orGetDeviceProperties(&properties, device) != orSuccess) {
      continue;
    }
    // For CUDA programs, the capability differs from that of the runtime's interface.
    const std::string capability = c10::openreg::servesCuda()
                                       ? std::string(c10::openreg::deviceForm().capability())
                                       : c10::str(properties.major, ".", properties.minor);
    const size_t point = capability.find('.');
    objects += c10::str(
        objects.empty() ? "" : ", ", R"({"id": )", device, R"(, "name": ")",
        escaped(properties.name), R"(", "totalGlobalMem": )", properties.totalGlobalMem,
        R"(, "computeMajor": )", capability.substr(0, point), R"(, "computeMinor": )",
        capability.substr(point + 1), R"(, "numSms": )", properties.multiProcessorCount, "}");
  }
  return objects;
}

// docs: profiler-push
void TraceSession::pushCorrelationId(uint64_t id) {
  ThreadState& state = threadState();
  if (orTracePushExternalId(id) == orSuccess) {
    ++state.external_ids;
  }
}

void TraceSession::popCorrelationId() {
  ThreadState& state = threadState();
  if (state.external_ids > 0) {
    uint64_t id = 0;
    std::ignore = orTracePopExternalId(&id);
    --state.external_ids;
  }
}
// docs: end

void TraceSession::pushUserCorrelationId(uint64_t id) {
  ThreadState& state = threadState();
  const int thread_id = libkineto::systemThreadId();
  const int64_t now_ns = runtimeTimeNs();
  const c10::openreg::Lock lock(mutex_);
  state.blocks.push_back(blocks_.size());
  blocks_.push_back({.thread_id = thread_id,
                     .start_ns = now_ns,
                     .end_ns = Annotation::kOpen,
                     .torch_id = id,
                     .name = {}});
}

void TraceSession::popUserCorrelationId() {
  ThreadState& state = threadState();
  if (!state.blocks.empty()) {
    const int64_t now_ns = runtimeTimeNs();
    const c10::openreg::Lock lock(mutex_);
    blocks_[state.blocks.back()].end_ns = now_ns;
    state.blocks.pop_back();
  }
}

}  // namespace at::openreg
