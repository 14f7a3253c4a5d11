// Stacks of tensors: the CPU's kernel by the fallback, except for many small tensors.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/aten/structured/Concatenation.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// See Note [Many small tensors].
void stack(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  if (arguments[0].toListRef().size() > kShortList) {
    const c10::List<Tensor> tensors = arguments[0].toTensorList();
    std::optional<Tensor> result = stackOfMany(ITensorListRef(tensors), arguments[1].toInt());
    if (result.has_value()) {
      torch::jit::drop(*stack, arguments.size());
      torch::jit::push(*stack, *std::move(result));
      return;
    }
  }
  runFallback(op, keys, stack);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("stack", torch::CppFunction::makeFromBoxedFunction<&stack>());
}

}  // namespace at::openreg
