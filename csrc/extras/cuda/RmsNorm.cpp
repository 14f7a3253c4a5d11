// The root mean square norm as CUDA has it: one operator, which saves the input and a number for
// each row. torch composes it of others on devices without such a kernel.
//
// The kernels compute what the CPU's composition and its derivative compute, in the same order, so
// that results and gradients have the CPU's bits.

#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/aten/fallback/MixedDevices.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using MaybeTensor = std::optional<Tensor>;

bool isGiven(const MaybeTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// --- On the worker

void normalize(const Tensor& input, IntArrayRef normalized, const MaybeTensor& weight,
               std::optional<double> eps, Tensor& output, Tensor& rstd) {
  const auto [result, inverse] = at::_fused_rms_norm(input, normalized, weight, eps);
  output.copy_(result);
  rstd.copy_(inverse);
}

// `rstd` is 1 / sqrt(mean(input^2) + eps), with a 1 for each dimension over which the mean goes.
void computeGradients(const Tensor& grad_out, const Tensor& input, const Tensor& rstd,
                      const MaybeTensor& weight, MaybeTensor& grad_input,
                      MaybeTensor& grad_weight) {
  const ScalarType dtype = rstd.scalar_type();
  const Tensor x = input.to(dtype);
  Tensor gradient = grad_out.to(dtype);
  if (isGiven(grad_weight)) {
    grad_weight->copy_(at::sum_to(gradient * (x * rstd), grad_weight->sizes()));
  }
  if (!isGiven(grad_input)) {
    return;
  }
  if (isGiven(weight)) {
    gradient = gradient * *weight;
  }
  const Tensor of_rstd = at::sum_to(gradient * x, rstd.sizes());
  const Tensor of_mean = -0.5 * of_rstd * rstd.pow(3);
  const int64_t count = rstd.numel() == 0 ? 1 : x.numel() / rstd.numel();
  const Tensor of_square = of_mean.expand_as(x) / count;
  grad_input->copy_(gradient * rstd + of_square * (2 * x.pow(1)));
}

// --- On the calling thread

// Throws the errors of CUDA's kernels, which read the weight in the dtype of the input.
void checkInputs(const Tensor& input, IntArrayRef normalized, const MaybeTensor& weight) {
  at::native::_check_rms_norm_inputs_symint(input, c10::fromIntArrayRefSlow(normalized),
                                            isGiven(weight) ? *weight : Tensor());
  AT_DISPATCH_FLOATING_TYPES_AND2(ScalarType::Half, ScalarType::BFloat16, input.scalar_type(),
                                  "LayerNormKernelImpl", [] {});
  TORCH_CHECK(!isGiven(weight) || weight->scalar_type() == input.scalar_type(),
              "expected scalar type ", input.scalar_type(), " but found ", weight->scalar_type());
}

std::tuple<Tensor, Tensor> rmsNorm(const Tensor& input, IntArrayRef normalized,
                                   const MaybeTensor& weight, std::optional<double> eps) {
  checkInputs(input, normalized, weight);
  const c10::DeviceGuard guard(input.device());
  const auto rows = input.dim() - static_cast<int64_t>(normalized.size());
  std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().begin() + rows);
  sizes.resize(static_cast<size_t>(input.dim()), 1);
  Tensor rstd = at::empty(
      sizes, input.options().dtype(at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true)));
  if (input.numel() == 0) {  // whose strides are those of the composition
    const Tensor scaled = isGiven(weight) ? input * rstd * *weight : input * rstd;
    return {scaled.to(input.scalar_type()), std::move(rstd)};
  }
  Tensor output = at::empty_like(input, at::MemoryFormat::Contiguous);
  enqueue<"aten::_fused_rms_norm">(input.device(), &normalize, input, normalized, weight, eps,
                                   output, rstd);
  return {std::move(output), std::move(rstd)};
}

std::tuple<Tensor, Tensor> rmsNormBackward(const Tensor& grad_out, const Tensor& input,
                                           IntArrayRef normalized, const Tensor& rstd,
                                           const MaybeTensor& weight, std::array<bool, 2> mask) {
  checkInputs(input, normalized, weight);
  const c10::DeviceGuard guard(input.device());
  Tensor grad_input = mask[0] ? at::empty_like(input, at::MemoryFormat::Contiguous) : Tensor();
  Tensor grad_weight =
      mask[1] && isGiven(weight) ? at::empty_like(*weight, at::MemoryFormat::Contiguous) : Tensor();
  enqueue<"aten::_fused_rms_norm_backward">(input.device(), &computeGradients, grad_out, input,
                                            rstd, weight, MaybeTensor(grad_input),
                                            MaybeTensor(grad_weight));
  return {std::move(grad_input), std::move(grad_weight)};
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  if (!c10::openreg::servesCuda()) {
    return;
  }
  m.impl("_fused_rms_norm", &DeviceCheckingKernel<"aten::_fused_rms_norm", &rmsNorm>::call);
  m.impl("_fused_rms_norm_backward",
         &DeviceCheckingKernel<"aten::_fused_rms_norm_backward", &rmsNormBackward>::call);
}

}  // namespace at::openreg
