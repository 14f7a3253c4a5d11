// The boxed fallback: how an operator without a kernel of its own runs.
//
// It waits for the inputs, calls the CPU kernel on the calling thread with CPU tensors that alias
// device memory, and moves new results into device memory. Correct for every operator that the
// CPU has a kernel for, and synchronous: each call is counted, and can be made to warn or fail.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "csrc/core/Macros.h"

namespace at::openreg {

enum class FallbackMode { Silent, Warn, Error };

// The mode; "silent" until it is set, or what the environment variable OPENREG_FALLBACK says.
OPENREG_EXPORT FallbackMode fallbackMode();
OPENREG_EXPORT void setFallbackMode(FallbackMode mode);

// A mode's name is "silent", "warn" or "error". parseFallbackMode throws for any other text.
OPENREG_EXPORT const char* fallbackModeName(FallbackMode mode);
OPENREG_EXPORT FallbackMode parseFallbackMode(const std::string& name);

// Calls per operator, such as {"aten::cholesky", 3}, since the start or the last reset.
OPENREG_EXPORT std::map<std::string, int64_t> fallbackStats();
OPENREG_EXPORT void resetFallbackStats();

}  // namespace at::openreg
