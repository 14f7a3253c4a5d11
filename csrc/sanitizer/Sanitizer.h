// Finds work on several streams that nothing orders. docs/sanitizer.md describes the rules. It is
// an observer (torch_openreg/core/Observer.h) of the backend.
//
// Note [Clocks]
// Each stream has a vector clock (Clock.h), and so has the host: all that any host thread has
// waited for is known to all of them. A launch takes over what the host knows, and counts one. An
// event keeps the clock of its stream at the record; whoever waits for it takes that over. An
// access is ordered before the next work of a stream if the stream's clock, or the host's, has
// reached its launch.
//
// Note [Hazards]
// Memory that is freed while another stream may still use it is a mistake only if its owner, which
// may get the same memory again, does so before it is ordered behind that use. So at the free,
// what other streams did to the memory and record_stream did not announce becomes a hazard of the
// owner. It goes when the owner or the host comes to be ordered behind it, and is a finding at the
// first use of any memory of that stream and pool that was allocated after the free: which block
// the allocator picks is nothing that a program can rely on.
//
// Note [Uninitialized memory]
// An allocation that is new has no written bytes (WrittenBytes.h). A kernel writes what the backend
// says that it writes; what it reads of that before is known by the operator's name: operators in
// place read it, but for those of onlyWrites(). What a graph allocates has been written once a
// replay has run the kernel that writes it. Where the backend cannot know, bytes count as written.
//
// Note [One finding for each mistake]
// What was found is taken as ordered from there on, as it would be with the wait that is missing:
// else each later use of the tensor would be one more finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/sanitizer/Finding.h"
#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {

struct SanitizerOptions {
  bool finds_races = true;
  bool finds_lifetimes = true;
  bool is_lifetime_exact = false;  // hazards count only for memory that is in fact the same
  bool finds_host_accesses = true;
  bool watches_pages = true;  // else host accesses are those of operators
  bool finds_refused_calls = true;
  bool finds_uninitialized = false;  // besides results of graphs that have not been replayed
};

// What is done with findings: in the thread that made the second access, without a lock. If it
// throws, the launch is left out.
using ReportFinding = void (*)(const Finding& finding);

struct SanitizerCounts {
  uint64_t launches = 0;             // of which the accesses were seen
  uint64_t not_seen = 0;             // kernels launched without telling their tensors
  uint64_t undecided = 0;            // accesses with too many runs to compare, or to remember
  uint64_t forgotten = 0;            // times that accesses were dropped for want of room
  uint64_t live_allocations = 0;     // now
  uint64_t remembered_access = 0;    // now
  uint64_t remembered_launches = 0;  // now, of which there are accesses
  uint64_t bytes = 0;                // now, of the accesses and launches
  uint64_t open_hazards = 0;         // now
  uint64_t copies_not_watched = 0;   // from or to pinned memory whose pages cannot be protected
  uint64_t pages_opened = 0;         // by accesses to other bytes than those of a copy
};

OPENREG_EXPORT bool isSanitizerOn() noexcept;

// Called once, by the bindings.
OPENREG_EXPORT void setFindingReporter(ReportFinding report);

// Turns it on, or changes the options. What happened before is not known, and taken as ordered.
OPENREG_EXPORT void enableSanitizer(const SanitizerOptions& options);

// Turns it off and forgets everything but the counts.
OPENREG_EXPORT void disableSanitizer();

OPENREG_EXPORT SanitizerCounts sanitizerCounts();

// Reports what the host has touched since the last call into the backend. Each such call does it,
// so this is for whoever wants to see all findings. Errors: as ReportFinding throws.
OPENREG_EXPORT void reportHostTouches();

// The host is about to read or write memory, in an operator of the CPU.
// Errors: as ReportFinding throws.
void recordHostAccesses(const char* kernel, ArrayRef<Operand> operands);

// The kernels that were not seen, with how often.
OPENREG_EXPORT std::vector<std::pair<std::string, uint64_t>> kernelsNotSeen();

}  // namespace c10::openreg
