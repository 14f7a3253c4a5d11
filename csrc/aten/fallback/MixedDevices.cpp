#include "csrc/aten/fallback/MixedDevices.h"

#include "build/generated/facts/CpuTensors.h"
#include "build/generated/facts/DeviceArguments.h"
#include "build/generated/facts/DeviceChecks.h"
#include "build/generated/facts/RunsAsWhole.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/aten/launch/DeviceCheck.h"

namespace at::openreg {

namespace facts = c10::openreg::facts;

CudaKernel::CudaKernel(const c10::OperatorHandle& op) {
  const std::string name = c10::toString(op.operator_name());
  if (const auto* const wrapper = facts::kDeviceChecks.find(name)) {
    checking_wrapper = wrapper->empty() ? nullptr : wrapper->data();
    return;
  }
  const auto* const reason = facts::kRunsAsWhole.find(name);
  if (reason == nullptr || (reason->choice != facts::RunsAsWhole::ReadsMemory &&
                            reason->choice != facts::RunsAsWhole::SomeDevices)) {
    composition = compositionOf(op, /*is_strided=*/true);
  }
}

void checkDevices(const char* name, const c10::FunctionSchema& schema,
                  c10::ArrayRef<c10::IValue> arguments, c10::DispatchKey functionality) {
  DeviceCheck check(name, functionality);
  const auto add = [&](bool is_out) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (argument.is_out() == is_out && (is_out || !argument.kwarg_only())) {
        visitTensors(arguments[i],
                     [&](const Tensor& tensor) { check.add(tensor, argument.name().c_str()); });
      }
    }
  };
  add(/*is_out=*/true);
  add(/*is_out=*/false);
}

void checkDevices(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  if (const char* const name = CudaKernel(op).checking_wrapper) {
    checkDevices(name, op.schema(), arguments, c10::DispatchKey::Dense);
  }
}

bool takesCpuTensor(const std::string& operator_name, const c10::Argument& argument,
                    const Tensor& tensor) {
  const auto is_listed = [&](const facts::Arguments* arguments) {
    return arguments != nullptr && arguments->contain(argument.name());
  };
  if (tensor.dim() == 0) {
    return !isWritten(argument) && !is_listed(facts::kDeviceArguments.find(operator_name));
  }
  return is_listed(facts::kCpuTensors.find(operator_name));
}

std::optional<c10::DispatchKey> compositionOf(const c10::OperatorHandle& op, bool is_strided) {
  using c10::DispatchKey;
  for (const DispatchKey alias :
       {DispatchKey::CompositeExplicitAutogradNonFunctional, DispatchKey::CompositeExplicitAutograd,
        DispatchKey::CompositeImplicitAutograd}) {
    const bool is_for_strided = alias == DispatchKey::CompositeExplicitAutogradNonFunctional;
    if ((is_strided || !is_for_strided) && op.hasKernelForDispatchKey(alias)) {
      return alias;
    }
  }
  return std::nullopt;
}

}  // namespace at::openreg
