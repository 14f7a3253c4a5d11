// The boxed fallback: how an operator without a kernel of its own runs.
//
// The kernel is the CPU's, called with CPU tensors that alias device memory. The first call with
// arguments of some sizes and types runs on the calling thread, after the stream's work; calls that
// repeat it run on the stream. See Note [Calls that repeat] in CallPlan.h. Correct for every
// operator that the CPU has a kernel for. Each call is counted, and one for which the host waits
// can be made to warn or fail.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Runs the operator: takes its arguments from the stack and leaves its results there. `keys` are
// the dispatch keys left: those of sparse, quantized or nested tensors, or of strided ones only.
OPENREG_EXPORT void runFallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack);

}  // namespace at::openreg
