// What the CPU's kernels demand of their arguments, or do with their outputs, and their shape
// functions do not say. codegen/model.py lists the operators that have rules of their own.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/FractionalMaxPooling.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Gives an output that the shape function has sized the memory format that `model` suggests, as
// `output.resize_(output.sizes(), model.suggest_memory_format())` does on the CPU: whatever strides
// the caller's tensor had are lost. Throws if its storage is too small for them.
OPENREG_EXPORT void setMemoryFormat(const Tensor& output, const Tensor& model);

namespace detail {

OPENREG_EXPORT void tryOverlapping(ArrayRef<const Tensor*> operands, size_t output_count,
                                   c10::function_ref<void(Tensor*)> kernel);

}  // namespace detail

// Note [Outputs that overlap themselves]
// Most kernels refuse to write a tensor of which several elements are one, such as an expanded one,
// and some do not. A TensorIterator refuses in the shape function; what the other kernels do shows
// when they run, too late for the caller. Overlap is rare, so then the kernel runs first on the
// calling thread: on CPU tensors of the operands' sizes that are all zeros, whose outputs overlap
// as the operands do. What it throws, the call throws.
inline void checkOverlap(ArrayRef<const Tensor*> operands, size_t output_count,
                         c10::function_ref<void(Tensor*)> kernel) {
  const auto overlaps = [](const Tensor* output) {
    return output->defined() && at::has_internal_overlap(*output) == MemOverlap::Yes;
  };
  const auto outputs = operands.slice(0, output_count);
  if (C10_UNLIKELY(std::any_of(outputs.begin(), outputs.end(), overlaps))) {
    detail::tryOverlapping(operands, output_count, kernel);
  }
}

// For kernels that cannot run on such tensors.
constexpr const char* kOverlapText =
    "out=: expected a tensor of which every element has memory of its own, got one that overlaps "
    "itself, such as an expanded one; clone it first";

}  // namespace at::openreg
