// Traces: making activity records. See openreg/trace.h.
//
// extras/trace_buffer.cpp turns traces on and keeps the records.
#pragma once

#include <openreg/trace.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace openreg::trace {

extern std::atomic<unsigned> recorded_kinds;  // 0: off

// The installed function that keeps a record.
using KeepFn = void (*)(const orActivityRecord& record);
extern KeepFn keep_function;

inline bool is_on() { return recorded_kinds.load(std::memory_order_relaxed) != 0; }

// Turns tracing on for these kinds. Work that was submitted while it was off is not recorded.
void start(unsigned kinds);

// The ids that the calling thread has pushed and not popped. See orTracePushExternalId.
std::vector<uint64_t>& external_ids();

// What the calling thread begins to do now: a correlation id of its own, this thread's external id,
// no device and no stream.
orActivityRecord host_record(orActivityKind kind, const char* name);

// Keeps two records of work that the calling thread did in place of a stream: of the call that led
// to it, and of the work, whose members that orTraceRecordWork() reads are given.
void keep_host_work(const orActivityRecord& work, const char* call, int device, uint64_t stream_id);

// Keeps a record, if its kind is recorded and what it is about was submitted since the start.
void keep(const orActivityRecord& record);

// Records what a host thread does, from construction to destruction.
class Span {
 public:
  // `stream_id` and `device` may also be given later.
  Span(orActivityKind kind, const char* name, int device = -1, uint64_t stream_id = UINT64_MAX);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  bool is_on() const { return record_.correlation_id != 0; }
  orActivityRecord& record() { return record_; }
  const orActivityRecord& record() const { return record_; }

 private:
  orActivityRecord record_;  // only its correlation id is set, to 0, if tracing is off
};

}  // namespace openreg::trace
