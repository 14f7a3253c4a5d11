// Whether an out variant writes planned results as the operator computes them, found out by trying.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <optional>

#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/FallbackOperator.h"

namespace at::openreg {

// Calls the operator's out variant, which exists, with CPU tensors.
// Errors: what its kernel throws.
void callOutVariant(const FallbackOperator& known, torch::jit::Stack arguments,
                    c10::ArrayRef<Tensor> results);

// Note [Trials of writing]
// An out variant need not do what the operator does: it may round otherwise, take its results for
// scratch memory, give them other strides, or leave out what the operator does besides. So when a
// call is learned, the out variant runs beside the operator: on copies of the arguments, into
// memory with a pattern. It is used only if the results are then the operator's bit by bit, where
// and as they were put, and the arguments, too.
class WritingTrial {
 public:
  // Before the operator runs: copies the arguments, if there is something to try. Operators that
  // draw random numbers are not tried, as they would draw twice.
  WritingTrial(const FallbackOperator& known, const c10::OperatorHandle& op,
               c10::ArrayRef<c10::IValue> arguments);

  // After the operator has given `results`: how to write such results from now on.
  CallPlan::Writing best(c10::ArrayRef<c10::IValue> results);

 private:
  bool matches(c10::ArrayRef<c10::IValue> results);

  const FallbackOperator& known_;
  const c10::OperatorHandle& op_;
  const CallPlan::Writing writing_;
  torch::jit::Stack arguments_;
  torch::jit::Stack copies_;
};

// For OPENREG_FALLBACK_VERIFY: the first of `results` that is not bit by bit what the operator,
// called with `arguments`, gives. The arguments are those of before the call that gave the results.
std::optional<size_t> firstWrongResult(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                       c10::ArrayRef<Tensor> results);

// Copies of arguments and of their memory; what is the same tensor or memory stays the same.
torch::jit::Stack copiesOf(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace at::openreg
