#include "csrc/aten/fallback/Fallback.h"

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>

#include "build/generated/facts/CpuTensors.h"
#include "csrc/aten/dtypes/WiderTypes.h"
#include "csrc/aten/fallback/BoxedArguments.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "csrc/aten/fallback/HostCall.h"
#include "csrc/aten/fallback/PlanStore.h"
#include "csrc/aten/fallback/StreamCall.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"

namespace at::openreg {
namespace {

using c10::openreg::kDeviceType;

// Why a call cannot be captured in a graph.
constexpr const char* kFirstCall =
    ", whose first call with such arguments runs on the host: make it once before the capture";
constexpr const char* kHostCall = ", which runs on the host";

// Whether the argument may be a CPU tensor in a call with openreg tensors, as on CUDA.
bool takesCpuTensors(const std::string& operator_name, const c10::Argument& argument) {
  const auto* const arguments = c10::openreg::facts::kCpuTensors.find(operator_name);
  return arguments != nullptr && arguments->contain(argument.name());
}

// Finds the device of a call: that of its tensors, else its device argument.
struct DeviceFinder {
  const c10::FunctionSchema& schema;
  std::optional<c10::Device> of_tensors = std::nullopt;
  std::optional<c10::Device> of_argument = std::nullopt;
  bool has_cpu_tensor = false;

  void tensor(const Tensor& tensor) {
    if (isOpenReg(tensor)) {
      TORCH_CHECK(!of_tensors.has_value() || *of_tensors == tensor.device(),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  *of_tensors, " and ", tensor.device(), "! (", schema.operator_name(), ")");
      of_tensors = tensor.device();
    } else if (tensor.defined() && tensor.is_cpu()) {
      has_cpu_tensor = true;
    }
  }
  void tensors(c10::ArrayRef<c10::IValue> list) {
    for (const c10::IValue& element : list) {
      if (element.isTensor()) {
        tensor(element.toTensor());
      }
    }
  }
  void optionalTensors(c10::ArrayRef<c10::IValue> list) { tensors(list); }
  void device(c10::Device device) {
    of_argument = c10::Device(kDeviceType, c10::openreg::resolveDeviceIndex(device.index()));
  }
  void generator(const std::optional<Generator>& /*generator*/) {}
  void plain(const c10::IValue& /*value*/) {}
};

// Throws if there is a CPU tensor that is neither a number that is only read nor explicitly
// allowed.
void checkCpuTensors(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
                     c10::Device device) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    visitTensors(arguments[i], argument, [&](const Tensor& tensor) {
      TORCH_CHECK(
          !tensor.defined() || !tensor.is_cpu() ||
              (tensor.dim() == 0 ? !isWritten(argument) : takesCpuTensors(schema.name(), argument)),
          "Expected all tensors to be on the same device, but found at least two devices, ", device,
          " and cpu! (", schema.operator_name(), ")");
    });
  }
}

// The openreg device of the call; the current one if the arguments do not determine it.
// Errors: throws if tensors are on two devices.
c10::Device deviceOf(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  DeviceFinder found{schema};
  for (size_t i = 0; i < arguments.size(); ++i) {
    visitArgument(arguments[i], schema.arguments()[i], found);
  }
  const c10::Device device =
      found.of_tensors.has_value()
          ? *found.of_tensors
          : found.of_argument.value_or(c10::Device(kDeviceType, c10::openreg::current_device()));
  if (found.has_cpu_tensor) {
    checkCpuTensors(schema, arguments, device);
  }
  return device;
}

// The dispatch key of the corresponding CPU kernel.
c10::DispatchKey cpuKey(c10::DispatchKeySet keys) {
  return c10::toRuntimePerBackendFunctionalityKey(functionalityOf(keys),
                                                  c10::BackendComponent::CPUBit);
}

}  // namespace

// docs: fallback-call
void runFallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  FallbackOperator& known = fallbackOperator(op, &describeStreamCall);
  if (const DtypeSet dtypes = known.dtypesToWiden(keys);
      C10_UNLIKELY(dtypes != 0) && computesIn(dtypes, op, *stack)) {
    runWider(op, keys, stack);
    return;
  }
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  const c10::Device device = deviceOf(op.schema(), arguments);
  const c10::DeviceGuard guard(device);
  std::optional<CallSignature> signature;
  if (known.canPlan(op.schema(), arguments)) {
    signature = CallSignature::of(known, op.schema(), arguments);
  }
  auto plan = signature.has_value() ? findPlan(*signature) : nullptr;
  if (plan != nullptr && plan->kind == CallPlan::Kind::OnStream) {
    known.countAsynchronousCall();
    callOnStream(known, op, std::move(plan), device, stack);
    return;
  }
  const bool is_learning =
      signature.has_value() && (plan == nullptr || plan->kind == CallPlan::Kind::WarnedOnce);
  if (const auto stream = c10::openreg::getCurrentOpenRegStream(device.index());
      stream.isCapturing()) {
    checkNotCapturing(stream, (known.name() + (is_learning ? kFirstCall : kHostCall)).c_str());
  }
  known.countSynchronousCall();
  HostCall call(known, op, cpuKey(keys), device, stack);
  if (!is_learning) {
    call.run();
    return;
  }
  keepPlan(*signature, call.runAndLearn(/*has_warned_before=*/plan != nullptr));
}
// docs: end

OPENREG_LIBRARY_IMPL(_, Dense, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&runFallback>());
}

}  // namespace at::openreg
