// The operators of torch.nn.SyncBatchNorm, which torch implements only for accelerators. Each is
// one kernel, composed of the CPU's. As on CUDA, statistics and sums of float16 and bfloat16 are
// float32.

#include <ATen/AccumulateType.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using MaybeTensor = std::optional<Tensor>;

const Tensor& orUndefined(const MaybeTensor& tensor) {
  static const Tensor undefined;
  return tensor.has_value() ? *tensor : undefined;
}

bool isGiven(const MaybeTensor& tensor) { return orUndefined(tensor).defined(); }

ScalarType accumulateType(const Tensor& input) {
  return at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true);
}

// `kernel` is CUDA's, by the name in its texts.
void checkInput(const char* operation, const char* kernel, const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, operation, ": expected an input of at least 2 dimensions, got ",
              input.dim());
  TORCH_CHECK_NOT_IMPLEMENTED(
      input.is_floating_point() && c10::elementSize(input.scalar_type()) >= sizeof(c10::Half), '"',
      kernel, "\" not implemented for '", c10::toString(input.scalar_type()), "'");
}

// Checks that `tensor`, if defined, has one number for each channel of the input.
void checkChannels(const char* operation, const char* name, const Tensor& input,
                   const MaybeTensor& tensor) {
  TORCH_CHECK(!isGiven(tensor) || tensor->sizes() == IntArrayRef{input.size(1)}, operation,
              ": expected ", name, " of sizes ", IntArrayRef{input.size(1)}, ", got ",
              tensor->sizes());
}

// On the current device.
Tensor emptyOfChannels(const Tensor& input, ScalarType dtype) {
  return emptyOnCurrentDevice({input.size(1)}, dtype);
}

// The functions below run on the worker.

std::vector<int64_t> allButChannels(const Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

// One number for each channel, in the input's accumulate type and shaped to broadcast with it.
Tensor perChannel(const Tensor& numbers, const Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return numbers.to(accumulateType(input)).view(shape);
}

Tensor inverseDeviation(const Tensor& variance, double eps) {
  const Tensor inverse = (variance + eps).sqrt().reciprocal();
  return eps == 0 ? inverse.masked_fill(variance.eq(0), 0) : inverse;
}

void computeStats(const Tensor& input, double eps, Tensor& mean, Tensor& invstd) {
  const auto [variance, average] =
      at::var_mean(input.to(mean.scalar_type()), allButChannels(input), /*correction=*/0);
  mean.copy_(average);
  invstd.copy_(inverseDeviation(variance, eps));
}

void normalize(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
               const Tensor& mean, const Tensor& invstd, Tensor& output) {
  Tensor normalized = input.to(accumulateType(input)) - perChannel(mean, input);
  if (isGiven(weight)) {
    normalized.mul_(perChannel(*weight, input));
  }
  normalized.mul_(perChannel(invstd, input));
  if (isGiven(bias)) {
    normalized.add_(perChannel(*bias, input));
  }
  output.copy_(normalized);
}

void updateRunning(const MaybeTensor& running, double momentum, const Tensor& current) {
  if (isGiven(running)) {
    running->copy_(running->to(current.scalar_type()) * (1 - momentum) + current * momentum);
  }
}

// `mean` and `invstd` have a row for each process, `counts` the number of elements of each process
// in a channel. Rows are combined one after the other by the formula of Chan, Golub and LeVeque.
void gatherStats(const Tensor& mean, const Tensor& invstd, MaybeTensor& running_mean,
                 MaybeTensor& running_var, double momentum, double eps, const Tensor& counts,
                 Tensor& joined_mean, Tensor& joined_invstd) {
  const ScalarType dtype = joined_mean.scalar_type();
  const Tensor means = mean.to(dtype);
  const Tensor deviations = invstd.to(dtype).reciprocal();
  const Tensor sizes = counts.to(dtype);
  Tensor average = at::zeros({mean.size(1)}, means.options());
  Tensor squares = at::zeros_like(average);  // sum of squared differences from the average
  Tensor size = at::zeros({}, means.options());
  for (int64_t i = 0; i < mean.size(0); ++i) {
    const Tensor added = sizes[i];
    const Tensor factor = (size + added).reciprocal();
    const Tensor difference = average - means[i];
    squares += (deviations[i] * deviations[i] - eps) * added +
               difference * difference * (size * added * factor);
    average = average * (size * factor) + means[i] * (added * factor);
    size = size + added;
  }
  joined_mean.copy_(average);
  joined_invstd.copy_(inverseDeviation(squares / size, eps));
  updateRunning(running_mean, momentum, average);
  updateRunning(running_var, momentum, squares / (size - 1));
}

void reduceGradients(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                     const Tensor& invstd, MaybeTensor& sum_dy, MaybeTensor& sum_dy_xmu,
                     MaybeTensor& grad_weight, MaybeTensor& grad_bias) {
  const ScalarType dtype = accumulateType(input);
  const Tensor gradient = grad_out.to(dtype);
  const Tensor centered = input.to(dtype) - perChannel(mean, input);
  const Tensor sum = gradient.sum(allButChannels(input));
  const Tensor product = (gradient * centered).sum(allButChannels(input));
  if (isGiven(sum_dy)) {
    sum_dy->copy_(sum);
    sum_dy_xmu->copy_(product);
  }
  if (isGiven(grad_weight)) {
    grad_weight->copy_(product * invstd.to(dtype));
  }
  if (isGiven(grad_bias)) {
    grad_bias->copy_(sum);
  }
}

void computeGradient(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                     const Tensor& invstd, const MaybeTensor& weight, const Tensor& sum_dy,
                     const Tensor& sum_dy_xmu, const Tensor& count, Tensor& grad_input) {
  const ScalarType dtype = accumulateType(input);
  const Tensor part = count.sum().to(dtype).reciprocal();
  const Tensor deviation = perChannel(invstd, input);
  const Tensor slope = perChannel(sum_dy_xmu, input) * part * deviation * deviation;
  Tensor gradient = grad_out.to(dtype) - perChannel(sum_dy, input) * part -
                    (input.to(dtype) - perChannel(mean, input)) * slope;
  gradient.mul_(isGiven(weight) ? perChannel(*weight, input) * deviation : deviation);
  grad_input.copy_(gradient);
}

// The operators.

std::tuple<Tensor, Tensor> batchNormStats(const Tensor& input, double eps) {
  checkInput("batch_norm_stats", "batch_norm_stats_cuda", input);
  const c10::DeviceGuard guard(input.device());
  Tensor mean = emptyOfChannels(input, accumulateType(input));
  Tensor invstd = emptyOfChannels(input, accumulateType(input));
  enqueue<"aten::batch_norm_stats">(input.device(), &computeStats, input, eps, mean, invstd);
  return {std::move(mean), std::move(invstd)};
}

void checkElements(const char* operation, const char* kernel, const Tensor& input,
                   const MaybeTensor& weight, const MaybeTensor& bias, const Tensor& mean,
                   const Tensor& invstd) {
  checkInput(operation, kernel, input);
  checkChannels(operation, "weight", input, weight);
  checkChannels(operation, "bias", input, bias);
  checkChannels(operation, "mean", input, mean);
  checkChannels(operation, "invstd", input, invstd);
}

Tensor& batchNormElemtOut(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                          const Tensor& mean, const Tensor& invstd, double /*eps*/,
                          Tensor& output) {
  checkElements("batch_norm_elemt", "batch_norm_elementwise_cuda", input, weight, bias, mean,
                invstd);
  const c10::DeviceGuard guard(input.device());
  at::native::resize_output(output, input.sizes());
  enqueue<"aten::batch_norm_elemt">(input.device(), &normalize, input, weight, bias, mean, invstd,
                                    output);
  return output;
}

Tensor batchNormElemt(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                      const Tensor& mean, const Tensor& invstd, double eps) {
  Tensor output = at::empty_like(input);
  return batchNormElemtOut(input, weight, bias, mean, invstd, eps, output);
}

std::tuple<Tensor, Tensor> batchNormGatherStatsWithCounts(
    const Tensor& input, const Tensor& mean, const Tensor& invstd, const MaybeTensor& running_mean,
    const MaybeTensor& running_var, double momentum, double eps, const Tensor& counts) {
  constexpr const char* kName = "batch_norm_gather_stats_with_counts";
  checkInput(kName, "batch_norm_update_stats_cuda", input);
  checkChannels(kName, "running_mean", input, running_mean);
  checkChannels(kName, "running_var", input, running_var);
  TORCH_CHECK(mean.dim() == 2 && mean.size(1) == input.size(1) && invstd.sizes() == mean.sizes(),
              kName, ": expected mean and invstd of sizes [processes, ", input.size(1), "], got ",
              mean.sizes(), " and ", invstd.sizes());
  TORCH_CHECK(counts.sizes() == IntArrayRef{mean.size(0)}, kName, ": expected counts of sizes ",
              IntArrayRef{mean.size(0)}, ", got ", counts.sizes());
  const c10::DeviceGuard guard(input.device());
  Tensor joined_mean = emptyOfChannels(input, accumulateType(mean));
  Tensor joined_invstd = emptyOfChannels(input, accumulateType(mean));
  enqueue<"aten::batch_norm_gather_stats_with_counts">(input.device(), &gatherStats, mean, invstd,
                                                       running_mean, running_var, momentum, eps,
                                                       counts, joined_mean, joined_invstd);
  return {std::move(joined_mean), std::move(joined_invstd)};
}

std::tuple<Tensor, Tensor> batchNormGatherStats(const Tensor& input, const Tensor& mean,
                                                const Tensor& invstd,
                                                const MaybeTensor& running_mean,
                                                const MaybeTensor& running_var, double momentum,
                                                double eps, int64_t count) {
  const Tensor counts =
      at::full({mean.size(0)}, count, input.options().dtype(accumulateType(mean)));
  return batchNormGatherStatsWithCounts(input, mean, invstd, running_mean, running_var, momentum,
                                        eps, counts);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batchNormBackwardReduce(
    const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& invstd,
    const MaybeTensor& weight, bool input_g, bool weight_g, bool bias_g) {
  constexpr const char* kName = "batch_norm_backward_reduce";
  checkElements(kName, kName, input, weight, std::nullopt, mean, invstd);
  TORCH_CHECK(grad_out.sizes() == input.sizes(), kName, ": expected grad_out of sizes ",
              input.sizes(), ", got ", grad_out.sizes());
  TORCH_CHECK(isGiven(weight) || !(weight_g || bias_g), kName,
              ": expected a weight, whose type its gradient has, got none");
  const c10::DeviceGuard guard(input.device());
  const auto empty_if = [&](bool is_wanted, const Tensor& like) {
    return is_wanted ? emptyOfChannels(input, like.scalar_type()) : Tensor();
  };
  Tensor sum_dy = empty_if(input_g, mean);
  Tensor sum_dy_xmu = empty_if(input_g, mean);
  Tensor grad_weight = empty_if(weight_g, orUndefined(weight));
  Tensor grad_bias = empty_if(bias_g, orUndefined(weight));
  enqueue<"aten::batch_norm_backward_reduce">(
      input.device(), &reduceGradients, grad_out, input, mean, invstd, MaybeTensor(sum_dy),
      MaybeTensor(sum_dy_xmu), MaybeTensor(grad_weight), MaybeTensor(grad_bias));
  return {std::move(sum_dy), std::move(sum_dy_xmu), std::move(grad_weight), std::move(grad_bias)};
}

Tensor batchNormBackwardElemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                              const Tensor& invstd, const MaybeTensor& weight, const Tensor& sum_dy,
                              const Tensor& sum_dy_xmu, const Tensor& count) {
  constexpr const char* kName = "batch_norm_backward_elemt";
  checkElements(kName, kName, input, weight, std::nullopt, mean, invstd);
  checkChannels(kName, "sum_dy", input, sum_dy);
  checkChannels(kName, "sum_dy_xmu", input, sum_dy_xmu);
  TORCH_CHECK(grad_out.sizes() == input.sizes(), kName, ": expected grad_out of sizes ",
              input.sizes(), ", got ", grad_out.sizes());
  TORCH_CHECK(count.scalar_type() == kInt, kName, ": expected a count of type Int, got ",
              count.scalar_type());
  const c10::DeviceGuard guard(input.device());
  Tensor grad_input = at::empty_like(input);
  enqueue<"aten::batch_norm_backward_elemt">(input.device(), &computeGradient, grad_out, input,
                                             mean, invstd, weight, sum_dy, sum_dy_xmu, count,
                                             grad_input);
  return grad_input;
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("batch_norm_backward_elemt",
         &DeviceCheckingKernel<"aten::batch_norm_backward_elemt", &batchNormBackwardElemt>::call);
  m.impl("batch_norm_backward_reduce",
         &DeviceCheckingKernel<"aten::batch_norm_backward_reduce", &batchNormBackwardReduce>::call);
  m.impl("batch_norm_elemt",
         &DeviceCheckingKernel<"aten::batch_norm_elemt", &batchNormElemt>::call);
  m.impl("batch_norm_elemt.out",
         &DeviceCheckingKernel<"aten::batch_norm_elemt.out", &batchNormElemtOut>::call);
  m.impl("batch_norm_gather_stats",
         &DeviceCheckingKernel<"aten::batch_norm_gather_stats", &batchNormGatherStats>::call);
  m.impl("batch_norm_gather_stats_with_counts",
         &DeviceCheckingKernel<"aten::batch_norm_gather_stats_with_counts",
                               &batchNormGatherStatsWithCounts>::call);
  m.impl("batch_norm_stats",
         &DeviceCheckingKernel<"aten::batch_norm_stats", &batchNormStats>::call);
}

}  // namespace at::openreg
