// Tracing: making and keeping activity records. See openreg/trace.h.
#pragma once

#include <openreg/trace.h>

#include <atomic>
#include <cstdint>

#include "queue/command.h"

namespace openreg::trace {

extern std::atomic<unsigned> recorded_kinds;  // 0: off

inline bool is_on() { return recorded_kinds.load(std::memory_order_relaxed) != 0; }

// A number for what is submitted or called now.
uint64_t next_correlation_id();

// Stores this thread's innermost external id, if it has one.
void stamp_external_id(bool* has_external_id, uint64_t* external_id);

// Fills in what a command, and its kernel, tell about it. `command` is traced: tracing was on when
// it was submitted. Made before the command runs, as its closure and name may not outlive it.
orActivityRecord describe(Command& command, int device, uint64_t stream_id);

// What the calling thread does, without times: a correlation id of its own, this thread's external
// id, no device and no stream.
orActivityRecord host_record(orActivityKind kind, const char* name);

// Keeps two records of work that the calling thread did in place of a stream: of the work, given
// with its times, and of the call that led to it. Fills in the members that both share.
void keep_host_work(orActivityRecord work, const char* call, int device, uint64_t stream_id);

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
  orActivityRecord record_;
};

// Held over fork(), so that a child may record. The locks are leaves.
void lock_buffers();
void unlock_buffers();

}  // namespace openreg::trace
