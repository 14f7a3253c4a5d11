// Tracing: making and keeping activity records. See openreg/trace.h.
#pragma once

#include <openreg/trace.h>

#include <atomic>
#include <cstdint>

#include "command.h"

namespace openreg::trace {

extern std::atomic<unsigned> recorded_kinds;  // 0: off

inline bool is_on() { return recorded_kinds.load(std::memory_order_relaxed) != 0; }

// A number for what is submitted or called now.
uint64_t next_correlation_id();

// Stores this thread's innermost external id, if it has one.
void stamp_external_id(bool* has_external_id, uint64_t* external_id);

// Fills in what a command tells about itself. `command` is traced: tracing was on when it was
// submitted. Made before the command runs, as its closure and name may not outlive it.
orActivityRecord describe(const Command& command, int device, uint64_t stream_id);

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

}  // namespace openreg::trace
