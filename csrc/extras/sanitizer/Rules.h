// The rules that define findings, and how findings describe accesses and memory. docs/sanitizer.md
// describes the rules.
//
// Not thread-safe, as State.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/Finding.h"
#include "csrc/extras/sanitizer/HappensBefore.h"
#include "csrc/extras/sanitizer/MemoryAccess.h"
#include "csrc/extras/sanitizer/Shadow.h"
#include "csrc/extras/sanitizer/State.h"

namespace c10::openreg {

AllocationReport describe(const State& state, const Allocation& allocation);

// Offsets are counted from `base`.
AccessReport describe(const State& state, const Access& access, uintptr_t base);

// For work that is about to be launched. Repeating the call gives the same result.
std::vector<Finding> findAll(State& state, const Launch& launch,
                             const std::vector<MemoryAccess>& memory_accesses);

// From here on, the work counts as ordered after everything that was found. See Note [One finding
// for each mistake].
void takeAsOrdered(State& state, const Launch& launch,
                   const std::vector<MemoryAccess>& memory_accesses);

// For a replay: an allocation from outside the graph that has been freed.
Finding freedInput(const State& state, const Launch& replay, const Capture::Kept& kept);

// For each branch that the capture's first stream has not waited for, its last launch.
std::vector<Finding> findUnjoined(const State& state, Capture& capture);

// Where the host last waited for the stream of an access.
std::optional<WaitReport> hostWaitFor(const State& state, const Access& earlier);

// The latest access that conflicts with the host's access, or null.
const Access* findHostConflict(const State& state, const Allocation& allocation,
                               const Access& access);

}  // namespace c10::openreg
