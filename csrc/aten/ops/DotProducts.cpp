// Products of vectors whose factors may be zero tensors.
//
// Autograd uses zero tensors, which have no memory, for derivatives that vanish. torch passes them
// to few backend kernels: of those that compute, only to these. See Note [Zero tensors].
//
// Note [Zero tensors]
// For other operators, torch's fallback for zero tensors materializes them, or computes the result
// itself. `copy_` is another exception: see Copy.cpp.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/dot_native.h>
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

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("dot", torch::CppFunction::makeFromBoxedFunction<&product<&at::native::dot>>());
  m.impl("vdot", torch::CppFunction::makeFromBoxedFunction<&product<&at::native::vdot>>());
}

}  // namespace at::openreg
