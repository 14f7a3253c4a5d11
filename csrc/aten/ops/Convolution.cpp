// Convolutions: ATen chooses one of the CPU's kernels, by the fallback. The types of the arguments
// are checked here, because the error names them: those of a kernel's arguments are the CPU's.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

void checkSameType(const Tensor& input, const c10::IValue& parameter, const char* name) {
  if (parameter.isTensor() && parameter.toTensor().defined()) {
    const Tensor& given = parameter.toTensor();
    TORCH_CHECK(input.options().type_equal(given.options()), "Input type (", input.toString(),
                ") and ", name, " type (", given.toString(), ") should be the same");
  }
}

void convolution(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  const Tensor& input = arguments[0].toTensor();
  checkSameType(input, arguments[1], "weight");
  checkSameType(input, arguments[2], "bias");
  runFallback(op, keys, stack);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_convolution", torch::CppFunction::makeFromBoxedFunction<&convolution>());
}

}  // namespace at::openreg
