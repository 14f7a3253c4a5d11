// A call of the fallback whose results are planned: it runs on the stream.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>

#include "csrc/aten/fallback/CallPlan.h"

namespace at::openreg {

// Enqueues the CPU kernel on the current stream of `device`, and puts the results in place of the
// arguments. The plan has a value.
void callOnStream(const FallbackOperator& known, const c10::OperatorHandle& op,
                  std::shared_ptr<const ResultPlan> plan, c10::Device device,
                  torch::jit::Stack* stack);

// What FallbackOperator::kernel() is for an operator of this name.
orKernel describeCallOnStream(const char* name);

}  // namespace at::openreg
