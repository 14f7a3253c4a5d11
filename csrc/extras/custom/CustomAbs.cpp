// torch.ops.openreg.custom_abs: a custom operator, from its schema to its gradient.
// docs/custom_ops.md explains this file from top to bottom.

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/abs_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// docs: custom-abs-shape
Tensor emptyResult(const Tensor& input) {
  // The absolute value of a complex number is real.
  const ScalarType dtype = c10::toRealValueType(input.scalar_type());
  return at::empty_like(input, input.options().dtype(dtype));
}
// docs: end

// docs: custom-abs-kernel
void absKernel(Tensor& out, const Tensor& in) { at::cpu::abs_outf(in, out); }

Tensor customAbsOnCpu(const Tensor& input) {
  Tensor out = emptyResult(input);
  absKernel(out, input);
  return out;
}
// docs: end

// docs: custom-abs-launch
// The kernel checks the dtype when it runs. On the worker that is too late for the caller, so it
// first runs here on an empty tensor.
void checkDtype(const Tensor& input) {
  const Tensor in = at::empty({0}, input.options().device(kCPU));
  Tensor out = emptyResult(in);
  absKernel(out, in);
}

Tensor customAbsOnOpenReg(const Tensor& input) {
  checkDtype(input);
  const c10::DeviceGuard guard(input.device());
  Tensor out = emptyResult(input);
  enqueue<"openreg::custom_abs">(input.device(), &absKernel, out, input);
  return out;
}
// docs: end

// docs: custom-abs-autograd
Tensor callBelowAutograd(const Tensor& input) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("openreg::custom_abs", "")
                             .typed<Tensor(const Tensor&)>();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(input);
}

class CustomAbs : public torch::autograd::Function<CustomAbs> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input) {
    context->save_for_backward({input});
    return callBelowAutograd(input);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const Tensor input = context->get_saved_variables()[0];
    return {gradients[0] * input.sgn()};
  }
};

Tensor customAbsWithGradient(const Tensor& input) { return CustomAbs::apply(input); }
// docs: end

}  // namespace

// docs: custom-abs-register
TORCH_LIBRARY_FRAGMENT(openreg, m) { m.def("custom_abs(Tensor input) -> Tensor"); }

TORCH_LIBRARY_IMPL(openreg, CPU, m) { m.impl("custom_abs", TORCH_FN(customAbsOnCpu)); }

OPENREG_LIBRARY_IMPL(openreg, Dense, m) { m.impl("custom_abs", TORCH_FN(customAbsOnOpenReg)); }

TORCH_LIBRARY_IMPL(openreg, Meta, m) { m.impl("custom_abs", TORCH_FN(emptyResult)); }

TORCH_LIBRARY_IMPL(openreg, Autograd, m) { m.impl("custom_abs", TORCH_FN(customAbsWithGradient)); }
// docs: end

}  // namespace at::openreg
