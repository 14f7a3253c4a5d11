// Detects unordered work on several streams. docs/sanitizer.md describes the rules. It is an
// observer (torch_openreg/core/Observer.h) of the backend.
//
// Note [Clocks]
// Each stream has a vector clock (Clock.h), and the host has one as well: all host threads share
// it, so a wait of one thread counts for all. A launch merges the host's clock into the stream's,
// and increments the stream's count. An event stores the clock of its stream at the record; a wait
// for the event merges that clock into the waiter's. An access is ordered before the next work of a
// stream if the stream's clock, or the host's, has reached its launch.
//
// Note [Hazards]
// Freeing memory while another stream may still use it is a mistake only if its owner, which may
// get the same memory again, reuses it before it is ordered after that use. So at the free, uses by
// other streams that record_stream did not announce become hazards of the owner. A hazard ends when
// the owner or the host is ordered after that use. It is a finding at the first use of any memory
// of that stream and pool that was allocated after the free, because programs cannot rely on which
// block the allocator selects.
//
// Note [Uninitialized memory]
// A new allocation has no written bytes (WrittenBytes.h). The backend reports which operands a
// kernel writes. Whether it reads their old contents follows from the operator's name: in-place
// operators read them, except for those of onlyWrites(). Memory that a graph allocates is written
// once a replay has run the kernel that writes it. Bytes count as written if the backend does not
// have the information.
//
// Note [One finding for each mistake]
// After a finding, both accesses count as ordered, as if the missing wait existed: otherwise each
// later use of the tensor would be another finding.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "csrc/extras/sanitizer/Finding.h"
#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {

struct SanitizerOptions {
  bool finds_races = true;
  bool finds_lifetimes = true;
  bool is_lifetime_exact = false;  // only memory that is in fact reused counts for hazards
  bool finds_host_accesses = true;
  bool watches_pages = true;  // false: only host accesses of operators are found
  bool finds_refused_calls = true;
  bool finds_uninitialized = false;  // false: only results of graphs that have not been replayed
};

// Called with a finding on the thread that made the second access, without a lock held. If it
// throws, the launch is not made.
using ReportFinding = void (*)(const Finding& finding);

struct SanitizerCounts {
  uint64_t launches = 0;                               // whose accesses were recorded
  uint64_t not_seen = 0;                               // kernels launched without recorded accesses
  std::map<std::string, uint64_t> kernels_not_seen{};  // their numbers of launches
  uint64_t undecided = 0;            // accesses with too many runs to compare, or to store
  uint64_t forgotten = 0;            // times that accesses were dropped because a set was full
  uint64_t live_allocations = 0;     // now
  uint64_t remembered_access = 0;    // now
  uint64_t remembered_launches = 0;  // now: launches with stored accesses
  uint64_t bytes = 0;                // now: of stored accesses and launches
  uint64_t open_hazards = 0;         // now
  uint64_t copies_not_watched = 0;   // from or to pinned memory whose pages cannot be protected
  uint64_t pages_opened = 0;         // by accesses to bytes outside of a copy
};

OPENREG_EXPORT bool isSanitizerOn() noexcept;

// Turns it on, or changes the options. Earlier work is unknown, and counts as ordered.
OPENREG_EXPORT void enableSanitizer(const SanitizerOptions& options, ReportFinding report);

// Turns it off and discards everything except for the counts.
OPENREG_EXPORT void disableSanitizer();

OPENREG_EXPORT SanitizerCounts sanitizerCounts();

// Reports what no call of the program shows: host accesses since the last call into the backend,
// and what the programs of kernels have done that have run since. Every such call does so; this
// function is for programs that need the findings now. Errors: those of ReportFinding.
OPENREG_EXPORT void reportLateFindings();

// The host is about to read or write memory in an operator of the CPU.
// Errors: as ReportFinding throws; the operator is then not called.
void recordHostAccesses(const char* kernel, ArrayRef<Operand> operands);

}  // namespace c10::openreg
