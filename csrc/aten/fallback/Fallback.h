// The boxed fallback, which runs operators that have no kernel of their own on this device.
//
// It calls the CPU's kernel with CPU tensors that alias device memory. The first call with
// arguments of given sizes and types runs on the calling thread, after the stream's work; calls
// that repeat it run on the stream. See Note [Calls that repeat] in CallPlan.h. Correct for every
// operator that has a CPU kernel. Calls are counted, and those that make the host wait can warn or
// fail.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Runs the operator: takes its arguments from the stack and leaves its results there. `keys` are
// the remaining dispatch keys: those of sparse, quantized or nested tensors, or only of strided
// ones.
OPENREG_EXPORT void runFallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack);

}  // namespace at::openreg
