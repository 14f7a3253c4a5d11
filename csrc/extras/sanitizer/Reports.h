// Descriptions of accesses and memory for findings.
//
// Not thread-safe, as State.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>

#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/Finding.h"
#include "csrc/extras/sanitizer/MemoryAccess.h"
#include "csrc/extras/sanitizer/Shadow.h"
#include "csrc/extras/sanitizer/State.h"

namespace c10::openreg {

AllocationReport describe(const State& state, const Allocation& allocation);

// Offsets are counted from `base`.
AccessReport describe(const State& state, const Access& access, uintptr_t base);
AccessReport describe(const State& state, const Launch& launch, const MemoryAccess& memory_access,
                      uintptr_t base);

// Describes a host access by an operator; its stream is that of the conflicting access.
AccessReport describeHost(const Access& access, const char* kernel, const Stack& stack,
                          const Stream& stream, uintptr_t base);

}  // namespace c10::openreg
