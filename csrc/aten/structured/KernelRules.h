// What the CPU's kernels demand of their arguments, or do with their outputs, and their shape
// functions do not say. codegen/model.py lists the operators that have rules of their own.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/FractionalMaxPooling.h>
#include <c10/util/FunctionRef.h>

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

// Note [Outputs that overlap]
// Most kernels refuse to write a tensor of which several elements are one, such as an expanded one,
// or one that shares some memory with an input, and some do not. A TensorIterator refuses in the
// shape function; what the other kernels do shows when they run, too late for the caller. Overlap
// is rare, so then the kernel runs first on the calling thread: on CPU tensors of the operands'
// sizes that are all zeros and overlap as the operands do. What it throws, the call throws.
inline bool overlaps(ArrayRef<const Tensor*> operands, size_t output_count) {
  for (const Tensor* output : operands.slice(0, output_count)) {
    if (!output->defined()) {
      continue;
    }
    if (at::has_internal_overlap(*output) == MemOverlap::Yes) {
      return true;
    }
    for (const Tensor* input : operands.slice(output_count)) {
      if (input->defined() && !input->is_same(*output) && input->has_storage() &&
          input->storage().is_alias_of(output->storage()) &&
          at::get_overlap_status(*output, *input) != MemOverlapStatus::No) {
        return true;
      }
    }
  }
  return false;
}

inline void checkOverlap(ArrayRef<const Tensor*> operands, size_t output_count,
                         c10::function_ref<void(Tensor*)> kernel) {
  if (C10_UNLIKELY(overlaps(operands, output_count))) {
    detail::tryOverlapping(operands, output_count, kernel);
  }
}

// For kernels that cannot run on such tensors.
constexpr const char* kOverlapText =
    "out=: expected a tensor of which every element has memory of its own, got one that overlaps "
    "itself, such as an expanded one, or an input; clone it first";

}  // namespace at::openreg
