// Findings about what the programs of a launch have accessed; see LaunchTrace.h. They are made when
// the kernel has run, which may be after later launches.
//
// Not thread-safe, as State.
#pragma once

#include <vector>

#include "csrc/extras/sanitizer/Finding.h"
#include "csrc/extras/sanitizer/LaunchTrace.h"
#include "csrc/extras/sanitizer/MemoryAccess.h"
#include "csrc/extras/sanitizer/State.h"

namespace c10::openreg {

// Before the launch, which is not in a capture: gives the trace the memory of the operands.
void beginTrace(State& state, LaunchTrace& trace, std::vector<MemoryAccess>& memory_accesses);

// Takes what one run has shown: returns the findings, and records the accesses outside of the
// tensors that the launch was told of.
std::vector<Finding> settleTrace(State& state, LaunchTrace& trace,
                                 const LaunchTrace::Result& result);

// For a launch that has not run, and will not.
void dropTrace(State& state, LaunchTrace& trace);

}  // namespace c10::openreg
