// The CPU's own operators, where they access pinned memory.
#pragma once

namespace at::openreg {

// From this call on, reports operators of the CPU to the sanitizer, in all threads, until stopped.
// Costs each operator some time, so it is for programs that copy from or to pinned memory without
// waiting. Does nothing if it has been called before.
void observeHostOperators();
void stopObservingHostOperators();

}  // namespace at::openreg
