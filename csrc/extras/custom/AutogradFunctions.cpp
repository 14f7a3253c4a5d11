// Custom gradients for functions that return their argument:
// torch.ops.openreg.custom_autograd_fn_returns_self and custom_autograd_fn_aliasing.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace at::openreg {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// docs: autograd-functions
// The gradient of both is half of the incoming gradient, which shows that it passed through them.
class ReturnsSelf : public torch::autograd::Function<ReturnsSelf> {
 public:
  static Tensor forward(AutogradContext* /*context*/, const Tensor& input) { return input; }

  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    return {gradients[0] * 0.5};
  }
};

class Aliasing : public torch::autograd::Function<Aliasing> {
 public:
  static Tensor forward(AutogradContext* /*context*/, const Tensor& input) {
    return input.view_as(input);
  }

  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    return {gradients[0] * 0.5};
  }
};

Tensor returnsSelf(const Tensor& input) { return ReturnsSelf::apply(input); }
Tensor aliasing(const Tensor& input) { return Aliasing::apply(input); }
// docs: end

}  // namespace

// docs: register-autograd-functions
// CompositeImplicitAutograd, because they call only operators of ATen: one kernel serves every
// device, with and without autograd.
TORCH_LIBRARY_FRAGMENT(openreg, m) {
  m.def("custom_autograd_fn_returns_self(Tensor(a) input) -> Tensor(a)", TORCH_FN(returnsSelf));
  m.def("custom_autograd_fn_aliasing(Tensor(a) input) -> Tensor(a)", TORCH_FN(aliasing));
}
// docs: end

}  // namespace at::openreg
