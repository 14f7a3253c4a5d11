// The median along a dimension. The CPU's kernel reads a copy of its input with the strides of the
// input. If elements of the input share memory or have gaps between them, the strides of the copy
// differ, and the kernel reads outside of it. CUDA's kernel makes its input contiguous, and so does
// this one.

#include <torch/library.h>

#include "csrc/aten/fallback/Fallback.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

void median(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::IValue& self = torch::jit::peek(*stack, 0, op.schema().arguments().size());
  if (!self.toTensor().is_non_overlapping_and_dense()) {
    self = self.toTensor().contiguous();
  }
  runFallback(op, keys, stack);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("median.dim_values", torch::CppFunction::makeFromBoxedFunction<&median>());
  m.impl("nanmedian.dim_values", torch::CppFunction::makeFromBoxedFunction<&median>());
}

}  // namespace at::openreg
