// The CPU's own operators, where they touch pinned memory: for the sanitizer of streams.
#pragma once

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// From the call on, tells the sanitizer of operators of the CPU, in all threads, until stopped.
// Costs each operator some time, so it is for programs that copy from or to pinned memory without
// waiting. Does nothing if it has been called before.
void observeHostOperators();
OPENREG_EXPORT void stopObservingHostOperators();

}  // namespace at::openreg
