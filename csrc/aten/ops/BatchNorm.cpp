// Batch norm in evaluation mode: the results other than the output.
//
// The CPU returns empty saved statistics. torch's decompositions, and so fake tensors and
// compilers, expect that every other device returns the statistics used for the normalization.

#include <ATen/OpMathType.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

void computeStatistics(Tensor& mean, Tensor& inverse_deviation, const Tensor& running_mean,
                       const Tensor& running_var, double eps) {
  mean.copy_(running_mean);
  inverse_deviation.copy_(running_var).add_(eps).sqrt_().reciprocal_();
}

void batchNorm(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  const bool is_training = arguments[5].toBool();
  if (is_training || !arguments[3].isTensor() || !arguments[4].isTensor()) {
    runFallback(op, keys, stack);
    return;
  }
  const Tensor running_mean = arguments[3].toTensor();
  const Tensor running_var = arguments[4].toTensor();
  const double eps = arguments[7].toDouble();
  const ScalarType dtype = arguments[0].toTensor().scalar_type();
  runFallback(op, keys, stack);
  const auto options = running_mean.options().dtype(at::toOpMathType(dtype));
  Tensor mean = at::empty(running_mean.sizes(), options);
  Tensor inverse_deviation = at::empty(running_var.sizes(), options);
  enqueue<"aten::native_batch_norm (statistics)">(
      mean.device(), computeStatistics, mean, inverse_deviation, running_mean, running_var, eps);
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, std::move(mean), std::move(inverse_deviation));
}

// In evaluation mode, without the saved statistics: the CPU's kernel ignores them, but refuses a
// dtype other than that of the running statistics, such as our float32 for float16.
void batchNormBackward(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const bool is_training = (*stack)[first + 7].toBool();
  if (!is_training) {
    const c10::Device device = (*stack)[first].toTensor().device();
    for (const size_t saved : {first + 5, first + 6}) {
      if ((*stack)[saved].isTensor() && (*stack)[saved].toTensor().device() != device) {
        checkDevices(op, argumentsOnStack(op.schema(), *stack));
      }
    }
    (*stack)[first + 5] = c10::IValue();
    (*stack)[first + 6] = c10::IValue();
  }
  runFallback(op, keys, stack);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("native_batch_norm_backward",
         torch::CppFunction::makeFromBoxedFunction<&batchNormBackward>());
  m.impl("native_batch_norm", torch::CppFunction::makeFromBoxedFunction<&batchNorm>());
  m.impl("_native_batch_norm_legit", torch::CppFunction::makeFromBoxedFunction<&batchNorm>());
}

}  // namespace at::openreg
