// Tests whether an out variant writes planned results exactly as the operator computes them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <optional>

#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/FallbackOperator.h"

namespace at::openreg {

// Calls the operator's out variant, which must exist, with CPU tensors.
// Errors: those of its kernel.
void callOutVariant(const FallbackOperator& known, torch::jit::Stack arguments,
                    c10::ArrayRef<Tensor> results);

// Note [Out variant probes]
// An out variant may differ from the operator: it may round differently, use its results as scratch
// memory, change their strides, or omit side effects of the operator. So when a call is learned,
// the out variant runs beside the operator, on copies of the arguments and into memory filled with
// a pattern. It is used only if its results then equal the operator's bit by bit, with unchanged
// memory and metadata, and if the arguments are equal, too.
class OutVariantProbe {
 public:
  // Before the operator runs: copies the arguments, if there is an out variant to test. Operators
  // that draw random numbers are not tested, because they would draw twice.
  OutVariantProbe(const FallbackOperator& known, const c10::OperatorHandle& op,
                  c10::ArrayRef<c10::IValue> arguments);

  // After the operator has returned `results`: how to write such results from now on.
  CallPlan::Writing best(c10::ArrayRef<c10::IValue> results);

 private:
  bool matches(c10::ArrayRef<c10::IValue> results);

  const FallbackOperator& known_;
  const c10::OperatorHandle& op_;
  const CallPlan::Writing writing_;
  torch::jit::Stack arguments_;
  torch::jit::Stack copies_;
};

// For OPENREG_FALLBACK_VERIFY: the first of `results` that is not bit-identical to what the
// operator returns for `arguments`. The arguments must be as before the call that gave the results.
std::optional<size_t> firstWrongResult(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                       c10::ArrayRef<Tensor> results);

// Copies arguments and their memory; tensors or memory that are the same stay the same.
torch::jit::Stack copiesOf(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace at::openreg
