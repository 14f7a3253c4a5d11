#include "base/trace.h"

#include "base/os.h"
#include "base/thread_object.h"

namespace openreg::trace {

// Constants, as extras/trace_buffer.cpp may replace the function before or after the objects of
// this file are made.
constinit std::atomic<unsigned> recorded_kinds{0};
constinit KeepFn keep_function = [](const orActivityRecord&) {};

namespace {

std::atomic<uint64_t> last_correlation_id{0};

// The last id given before tracing was turned on: work with an id up to this one belongs to an
// earlier trace.
std::atomic<uint64_t> last_id_before_start{0};

struct ExternalIds {
  std::vector<uint64_t> ids;
};

}  // namespace

void start(unsigned kinds) {
  if (!is_on()) last_id_before_start.store(last_correlation_id.load());
  recorded_kinds.store(kinds);
}

std::vector<uint64_t>& external_ids() { return thread_object<ExternalIds>().ids; }

orActivityRecord host_record(orActivityKind kind, const char* name) {
  orActivityRecord record = {};
  const ExternalIds* external = find_thread_object<ExternalIds>();
  record.has_external_id = external != nullptr && !external->ids.empty();
  if (record.has_external_id) record.external_id = external->ids.back();
  record.kind = kind;
  record.name = name;
  record.device = -1;
  record.stream_id = UINT64_MAX;
  record.correlation_id = last_correlation_id.fetch_add(1, std::memory_order_relaxed) + 1;
  record.thread_id = os::thread_id();
  record.start_ns = os::now_ns();
  record.submit_ns = record.start_ns;
  record.memcpy_kind = -1;
  record.peer_device = -1;
  return record;
}

void keep_host_work(const orActivityRecord& work, const char* call, int device,
                    uint64_t stream_id) {
  orActivityRecord record = host_record(orActivityRuntime, call);
  record.device = device;
  record.stream_id = stream_id;
  record.submit_ns = work.start_ns;
  record.start_ns = work.start_ns;
  record.end_ns = work.end_ns;
  keep(record);
  record.kind = work.kind;
  record.name = work.name;
  record.bytes = work.bytes;
  record.memcpy_kind = work.memcpy_kind;
  record.peer_device = work.peer_device;
  keep(record);
}

void keep(const orActivityRecord& record) {
  // A thread that sees the kinds of a trace sees where it started, too.
  if ((recorded_kinds.load(std::memory_order_acquire) & record.kind) == 0) return;
  if (record.correlation_id <= last_id_before_start.load(std::memory_order_relaxed)) return;
  keep_function(record);
}

Span::Span(orActivityKind kind, const char* name, int device, uint64_t stream_id) {
  if (!trace::is_on()) {
    record_.correlation_id = 0;
    return;
  }
  record_ = host_record(kind, name);
  record_.device = device;
  record_.stream_id = stream_id;
}

Span::~Span() {
  if (!is_on()) return;
  record_.end_ns = os::now_ns();
  keep(record_);
}

}  // namespace openreg::trace
