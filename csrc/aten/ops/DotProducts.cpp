// Products of vectors whose factors may be zero tensors, and of matrices with a dtype of the
// result.
//
// Autograd uses zero tensors, which have no memory, for derivatives that vanish. torch passes them
// to few backend kernels: of those that compute, only to these. See Note [Zero tensors].
//
// Note [Zero tensors]
// For other operators, torch's fallback for zero tensors materializes them, or computes the result
// itself. `copy_` is another exception: see Copy.cpp.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/dot_native.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/vdot_native.h>
#include <torch/library.h>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using Product = Tensor (*)(const Tensor&, const Tensor&);

// The CPU's function checks the factors, and returns a zero tensor if one of them is, before it
// accesses memory.
template <Product cpu_product>
void product(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  const Tensor& self = arguments[0].toTensor();
  const Tensor& other = arguments[1].toTensor();
  if (C10_LIKELY(!self._is_zerotensor() && !other._is_zerotensor())) {
    runFallback(op, keys, stack);
    return;
  }
  Tensor zero = cpu_product(self, other);
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, std::move(zero));
}

// Errors: c10::Error for dtypes that CUDA refuses, too.
void checkResultDtype(const Tensor& left, const Tensor& right, ScalarType out_dtype) {
  const ScalarType dtype = left.scalar_type();
  TORCH_CHECK(dtype == right.scalar_type(), "input dtypes must be the same");
  TORCH_CHECK(out_dtype == dtype || (out_dtype == kFloat && (dtype == kHalf || dtype == kBFloat16)),
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
}

void checkOut(const Tensor& out, ScalarType out_dtype) {
  TORCH_CHECK(out_dtype == out.scalar_type(),
              "out_dtype must be the same as the dtype of the provided out tensor");
}

void checkAddend(const Tensor& self, const Tensor& left, ScalarType out_dtype, const char* name) {
  TORCH_CHECK(self.scalar_type() == out_dtype || self.scalar_type() == left.scalar_type(),
              "self dtype must match either out_dtype or ", name, " dtype");
}

// The product of the factors in the dtype of the result: no sum is rounded to theirs.
template <Product in_one_dtype>
Tensor productOf(const Tensor& left, const Tensor& right, ScalarType out_dtype) {
  checkResultDtype(left, right, out_dtype);
  return in_one_dtype(left.to(out_dtype), right.to(out_dtype));
}

template <Tensor& (*in_one_dtype)(Tensor&, const Tensor&, const Tensor&)>
Tensor& productInto(const Tensor& left, const Tensor& right, ScalarType out_dtype, Tensor& out) {
  checkOut(out, out_dtype);
  checkResultDtype(left, right, out_dtype);
  return in_one_dtype(out, left.to(out_dtype), right.to(out_dtype));
}

using Sum = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&);
using SumInto = Tensor& (*)(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                            const Scalar&);

inline constexpr char kMat1[] = "mat1";
inline constexpr char kBatch1[] = "batch1";

template <Sum in_one_dtype, const char* name>
Tensor sumOf(const Tensor& self, const Tensor& left, const Tensor& right, ScalarType out_dtype,
             const Scalar& beta, const Scalar& alpha) {
  checkAddend(self, left, out_dtype, name);
  checkResultDtype(left, right, out_dtype);
  return in_one_dtype(self.to(out_dtype), left.to(out_dtype), right.to(out_dtype), beta, alpha);
}

template <SumInto in_one_dtype, const char* name>
Tensor& sumInto(const Tensor& self, const Tensor& left, const Tensor& right, ScalarType out_dtype,
                const Scalar& beta, const Scalar& alpha, Tensor& out) {
  checkOut(out, out_dtype);
  checkAddend(self, left, out_dtype, name);
  checkResultDtype(left, right, out_dtype);
  return in_one_dtype(out, self.to(out_dtype), left.to(out_dtype), right.to(out_dtype), beta,
                      alpha);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("mm.dtype", TORCH_FN(productOf<&at::mm>));
  m.impl("mm.dtype_out", TORCH_FN(productInto<&at::mm_out>));
  m.impl("bmm.dtype", TORCH_FN(productOf<&at::bmm>));
  m.impl("bmm.dtype_out", TORCH_FN(productInto<&at::bmm_out>));
  m.impl("addmm.dtype", TORCH_FN((sumOf<&at::addmm, kMat1>)));
  m.impl("addmm.dtype_out", TORCH_FN((sumInto<&at::addmm_out, kMat1>)));
  m.impl("baddbmm.dtype", TORCH_FN((sumOf<&at::baddbmm, kBatch1>)));
  m.impl("baddbmm.dtype_out", TORCH_FN((sumInto<&at::baddbmm_out, kBatch1>)));
  m.impl("dot", torch::CppFunction::makeFromBoxedFunction<&product<&at::native::dot>>());
  m.impl("vdot", torch::CppFunction::makeFromBoxedFunction<&product<&at::native::vdot>>());
}

}  // namespace at::openreg
