// The boxed fallback: how an operator without a kernel of its own runs.
//
// The kernel is the CPU's, called with CPU tensors that alias device memory. The first call with
// arguments of some sizes and types runs on the calling thread, after the stream's work; calls that
// repeat it run on the stream. See Note [Calls that repeat] in ResultPlan.h. Correct for every
// operator that the CPU has a kernel for. Each call is counted, and one for which the host waits
// can be made to warn or fail.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <string>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

enum class FallbackMode { Silent, Warn, Error };

// The mode; "silent" until it is set, or what the environment variable OPENREG_FALLBACK says.
OPENREG_EXPORT FallbackMode fallbackMode();
OPENREG_EXPORT void setFallbackMode(FallbackMode mode);

// A mode's name is "silent", "warn" or "error". parseFallbackMode throws for any other text.
OPENREG_EXPORT const char* fallbackModeName(FallbackMode mode);
OPENREG_EXPORT FallbackMode parseFallbackMode(const std::string& name);

// Calls that ran on the stream, and calls for which the host waited.
struct FallbackCount {
  int64_t asynchronous;
  int64_t synchronous;
};

// Calls per operator, such as {"aten::cholesky", {2, 1}}, since the start or the last reset.
// Operators that were not called are left out.
OPENREG_EXPORT std::map<std::string, FallbackCount> fallbackStats();
OPENREG_EXPORT void resetFallbackStats();

// Runs the operator: takes its arguments from the stack and leaves its results there. `keys` are
// the dispatch keys left: those of sparse, quantized or nested tensors, or of strided ones only.
OPENREG_EXPORT void runFallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack);

}  // namespace at::openreg
