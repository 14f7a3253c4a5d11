#include "csrc/aten/fallback/LayoutFallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "build/generated/facts/SharedSparse.h"
#include "build/generated/facts/SharedSparseCsr.h"
#include "csrc/aten/fallback/BoxedCall.h"
#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"

namespace at::openreg {
namespace {

namespace facts = c10::openreg::facts;

bool isViewOperator(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), &isViewed);
}

// Whether the call views a tensor that was created outside inference mode.
bool viewsNormalTensor(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (isViewed(schema.arguments()[i]) && arguments[i].isTensor() &&
        !arguments[i].toTensor().is_inference()) {
      return true;
    }
  }
  return false;
}

// In inference mode, a view of a normal tensor is a normal tensor. Kernels for strided tensors take
// the keys of the original; kernels for other layouts make a new tensor, which follows the mode.
template <typename Run>
void runOutsideInferenceMode(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                             const Run& run) {
  if (c10::InferenceMode::is_enabled() &&
      viewsNormalTensor(op.schema(), argumentsOnStack(op.schema(), stack))) {
    const c10::InferenceMode outside(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::NoGradGuard without_gradients;
    run();
  } else {
    run();
  }
}

// The device that the caller names for the result, as in empty_like().
std::optional<c10::Device> deviceArgument(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments) {
    if (value.isDevice()) {
      const c10::Device device = value.toDevice();
      return device.type() == c10::openreg::kDeviceType
                 ? c10::Device(device.type(), c10::openreg::resolveDeviceIndex(device.index()))
                 : device;
    }
  }
  return std::nullopt;
}

// Not to(), which may call empty_like().
Tensor movedTo(c10::Device device, const Tensor& tensor) {
  if (isPlain(tensor)) {
    return tensor.to(device);
  }
  std::vector<Tensor> components = componentsOf(tensor);
  const c10::DeviceGuard guard(device);
  for (Tensor& component : components) {
    component = component.to(device);
  }
  return assemble(tensor, components);
}

// The fallback makes results on the device of the tensors among the arguments.
void runLayoutFallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const std::optional<c10::Device> device = deviceArgument(argumentsOnStack(op.schema(), *stack));
  runOutsideInferenceMode(op, *stack, [&] { runFallback(op, keys, stack); });
  if (!device.has_value() || !(device->is_cpu() || device->type() == c10::openreg::kDeviceType)) {
    return;
  }
  const auto count = static_cast<std::ptrdiff_t>(op.schema().returns().size());
  std::for_each(stack->end() - count, stack->end(), [&](c10::IValue& result) {
    if (result.isTensor() && result.toTensor().device() != *device) {
      result = movedTo(*device, result.toTensor());
    }
  });
}

// The CPU's kernel, on the tensors of the call.
void runCpuKernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  const c10::DispatchKeySet cpu_keys(c10::toRuntimePerBackendFunctionalityKey(
      functionalityOf(keys), c10::BackendComponent::CPUBit));
  runOutsideInferenceMode(op, *stack, [&] { op.redispatchBoxed(cpu_keys, stack); });
}

bool isShared(std::string_view name, c10::DispatchKey cpu_key) {
  return (cpu_key == c10::DispatchKey::SparseCPU && facts::kSharedSparse.contains(name)) ||
         (cpu_key == c10::DispatchKey::SparseCsrCPU && facts::kSharedSparseCsr.contains(name));
}

}  // namespace

torch::CppFunction layoutFallback() {
  return torch::CppFunction::makeFromBoxedFunction<&runLayoutFallback>();
}

c10::Device checkedDevice(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          const torch::jit::Stack& stack) {
  const BoxedCall call(fallbackOperator(op), op, stack);
  if (call.isMixed()) {
    call.checkDevices(functionalityOf(keys));
  }
  return deviceArgument(argumentsOnStack(op.schema(), stack)).value_or(call.device());
}

void runSharedKernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const c10::DeviceGuard guard(checkedDevice(op, keys, *stack));
  runCpuKernel(op, keys, stack);
}

std::optional<torch::CppFunction> layoutKernelFor(const c10::OperatorHandle& op,
                                                  c10::DispatchKey cpu_key) {
  if (op.operator_name().getNamespace() != "aten") {
    return std::nullopt;
  }
  if (op.hasKernelForDispatchKey(cpu_key)) {
    return isShared(c10::toString(op.operator_name()), cpu_key)
               ? torch::CppFunction::makeFromBoxedFunction<&runSharedKernel>()
               : layoutFallback();
  }
  if (op.hasSchema() && isViewOperator(op.schema()) &&
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
    return torch::CppFunction::makeFromBoxedFunction<&runCpuKernel>();
  }
  return std::nullopt;
}

void registerLayoutFallback(c10::DispatchKey layout, torch::Library& m) {
  const c10::DispatchKey cpu_key =
      c10::toRuntimePerBackendFunctionalityKey(layout, c10::BackendComponent::CPUBit);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || op->hasKernelForDispatchKey(c10::openreg::keyOf(layout))) {
      continue;
    }
    if (auto kernel = layoutKernelFor(*op, cpu_key)) {
      m.impl(c10::toString(name).c_str(), std::move(*kernel));
    }
  }
}

}  // namespace at::openreg
