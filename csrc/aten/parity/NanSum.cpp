// torch.nansum of complex numbers, which CUDA supports and the CPU does not: a number counts as
// zero if its real or imaginary part is NaN. Real numbers use the CPU's kernel.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/sum.h>
#include <c10/util/OptionalArrayRef.h>
#include <torch/library.h>

#include <utility>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// complex32 uses the fallback, which widens it and calls this function again.
bool isOfWideComplexNumbers(const Tensor& self) {
  return self.is_complex() && self.scalar_type() != kComplexHalf;
}

void nanSum(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  const Tensor self = arguments[0].toTensor();
  if (!isOfWideComplexNumbers(self)) {
    runFallback(op, keys, stack);
    return;
  }
  checkDevices(op, arguments);
  const Tensor numbers = at::masked_fill(self, at::isnan(self), 0);
  const auto dims = arguments[1].to<at::OptionalArray<int64_t>>();
  const auto dim = dims.list.has_value() ? OptionalIntArrayRef(*dims.list) : OptionalIntArrayRef();
  const bool keepdim = arguments[2].toBool();
  const auto dtype = arguments[3].toOptional<ScalarType>();
  const bool has_out = arguments.size() > 4;
  Tensor result = has_out ? arguments[4].toTensor() : Tensor();
  if (has_out) {
    at::sum_out(result, numbers, dim, keepdim, dtype);
  } else {
    result = at::sum(numbers, dim, keepdim, dtype);
  }
  torch::jit::drop(*stack, arguments.size());
  torch::jit::push(*stack, std::move(result));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("nansum", torch::CppFunction::makeFromBoxedFunction<&nanSum>());
  m.impl("nansum.out", torch::CppFunction::makeFromBoxedFunction<&nanSum>());
}

}  // namespace at::openreg
