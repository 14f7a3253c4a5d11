// Compares the results of planned calls with those of the operator, run once more: the setting
// OPENREG_FALLBACK_VERIFY.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace at::openreg {

// Whether the setting is on.
bool isVerifying();

// Copies CPU tensors and their memory; memory that is the same stays the same.
std::vector<Tensor> copiesOf(c10::ArrayRef<Tensor> tensors);

// The first of `results` that is not bit-identical to what the operator returns for `arguments`,
// which must be as before the call that gave the results. All are CPU tensors. A workspace, of
// which the operator leaves bytes unwritten, is not compared.
std::optional<size_t> firstWrongResult(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                       c10::ArrayRef<Tensor> results);

}  // namespace at::openreg
