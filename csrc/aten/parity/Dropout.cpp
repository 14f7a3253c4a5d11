// Dropout with the CPU's bits: there, F.dropout is a product with noise of the input's type,
// bernoulli(1 - p) / (1 - p).

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <tuple>

#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/refusals/RefusingKernel.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

std::tuple<Tensor, Tensor> nativeDropout(const Tensor& input, double p, std::optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(kBool))};
  }
  if (p == 1) {
    return {at::mul(input, at::zeros_like(input)),
            at::zeros_like(input, input.options().dtype(kBool))};
  }
  Tensor noise = at::empty_like(input).bernoulli_(1 - p);
  Tensor mask = noise.to(kBool);
  return {at::mul(input, noise.div_(1 - p)), mask};
}

Tensor nativeDropoutBackward(const Tensor& grad, const Tensor& mask, double scale) {
  if (scale == 0 || !(grad.is_floating_point() || grad.is_complex())) {
    return at::mul(at::mul(grad, mask), scale);
  }
  // scale is 1 / (1 - p); dividing by (1 - p) rounds as the noise of the forward pass does.
  return at::mul(grad, mask.to(grad.scalar_type()).div_(1 / scale));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("native_dropout", TORCH_FN(nativeDropout));
  m.impl(
      "native_dropout_backward",
      refusing<
          "aten::native_dropout_backward",
          &DeviceCheckingKernel<"aten::native_dropout_backward", &nativeDropoutBackward>::call>());
}

}  // namespace at::openreg
