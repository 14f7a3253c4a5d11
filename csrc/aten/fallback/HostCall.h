// A call of the fallback on the calling thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/FallbackOperator.h"

namespace at::openreg {

// Waits for the current stream of `device`, calls the CPU kernel with CPU tensors that alias the
// openreg tensors, and puts the results in place of the arguments. What the kernel wrote or
// resized in place is written and resized in place, what it returned as a view is a view, and new
// results move into device memory.
// `cpu_key` is the kernel's: c10::DispatchKey::CPU, or that of CPU tensors of another layout.
// Returns the plan by which such a call can run on the stream.
ResultPlan callOnHost(const FallbackOperator& known, const c10::OperatorHandle& op,
                      c10::DispatchKey cpu_key, c10::Device device, torch::jit::Stack* stack);

}  // namespace at::openreg
