// Requirements of CPU kernels that their shape functions do not cover.
// csrc/aten/facts/operators.yaml lists the operators that need them.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Activation.h>
#include <ATen/native/FractionalMaxPooling.h>
#include <c10/util/FunctionRef.h>

#include "csrc/aten/cpu/DryRun.h"

namespace at::openreg {

// Note [Outputs that overlap]
// Most kernels refuse an output that overlaps itself, such as an expanded tensor, or that overlaps
// an input; some do not. A TensorIterator refuses it in the shape function; other kernels do so
// when they run, which is too late for the caller. Overlap is rare, so in that case the kernel
// first runs on the calling thread, on CPU tensors with the operands' sizes that are all zeros and
// overlap as the operands do. The call rethrows its exception.
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
    dryRun(operands, output_count, DummyForm::OwnMemory, /*value=*/0, kernel);
  }
}

// For kernels that cannot run on such tensors.
constexpr const char* kOverlapText =
    "out=: expected a tensor without internal overlap that overlaps no input, got one that "
    "overlaps "
    "itself, such as an expanded one, or an input; clone it first";

}  // namespace at::openreg
