// The boxed fallback, which runs operators that have no kernel of their own on this device.
//
// It calls the CPU's kernel with CPU tensors that alias device memory: on the stream, if the
// metadata of the results can be predicted or are known from an earlier call (Note [Calls that
// repeat] in CallPlan.h), else on the calling thread, after the stream's work. Correct for every
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
