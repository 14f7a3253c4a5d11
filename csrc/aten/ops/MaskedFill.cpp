// Fills by a mask: the CPU's kernel, by the fallback. CUDA's kernel checks the devices itself, with
// a text of its own, and takes no CPU tensor as a mask.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

void maskedFill(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  const c10::Device of_self = arguments[0].toTensor().device();
  const c10::Device of_mask = arguments[1].toTensor().device();
  TORCH_CHECK(of_self == of_mask,
              "expected self and mask to be on the same device, but got mask on ", of_mask,
              " and self on ", of_self);
  if (const auto& value = arguments[2]; value.isTensor()) {
    TORCH_CHECK(value.toTensor().dim() == 0,
                "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
                value.toTensor().dim(), " dimension(s).");
  }
  runFallback(op, keys, stack);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("masked_fill_.Scalar", torch::CppFunction::makeFromBoxedFunction<&maskedFill>());
  m.impl("masked_fill_.Tensor", torch::CppFunction::makeFromBoxedFunction<&maskedFill>());
}

}  // namespace at::openreg
