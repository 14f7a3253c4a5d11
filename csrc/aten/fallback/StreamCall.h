// A call of the fallback whose results are planned: it runs on the stream.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Enqueues the CPU kernel on the current stream of `device`, which must be the current device, and
// replaces the arguments on the stack by the results. The plan is of kind OnStream.
// Errors: c10::OutOfMemoryError; the arguments are then unchanged.
void callOnStream(const FallbackOperator& known, const c10::OperatorHandle& op,
                  std::shared_ptr<const CallPlan> plan, c10::Device device,
                  torch::jit::Stack* stack);

// How many results the worker has copied since the start because their kernel did not compute them
// in place; see Note [Results in place].
OPENREG_EXPORT int64_t copiedResultCount();
// The number of calls in memory: pending and finished ones.
OPENREG_EXPORT size_t keptCallCount();

// A DescribeKernel function.
orKernel describeStreamCall(const char* name);

}  // namespace at::openreg
