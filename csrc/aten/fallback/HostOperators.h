// Observes operators of the CPU that access pinned memory, for the sanitizer.
#pragma once

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Starts reporting operators of the CPU in all threads to the sanitizer, until stopped. This makes
// each operator slower, so it is only for programs that copy from or to pinned memory without
// waiting. Further calls do nothing.
void observeHostOperators();
OPENREG_EXPORT void stopObservingHostOperators();

}  // namespace at::openreg
