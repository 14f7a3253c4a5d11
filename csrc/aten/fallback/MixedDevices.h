// Calls with tensors on several devices.
//
// Note [CPU tensors in a call]
// torch generates a wrapper for each kernel of CUDA. Most wrappers check that all tensors are on
// one device; then a CPU tensor without dimensions is an error, too. An operator that is declared
// with `device_check: NoCheck` has a wrapper without a check: its kernel decides, and usually takes
// such a tensor as a number. Operators without a kernel of CUDA are composed of others, which make
// these checks. This device does the same:
//
//   - An operator whose wrapper checks raises the wrapper's error. The table kDeviceChecks, which
//     the build makes of torch's declarations, has its name.
//   - A call of an operator without a kernel of CUDA is composed as on CUDA if its tensors are on
//     several devices, also where the CPU's kernel runs it as a whole.
//   - Other operators of the fallback take CPU tensors without dimensions, unless they write them
//     or the facts list the argument in device_arguments, and those that the facts list in
//     cpu_tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKey.h>

#include <optional>
#include <string>

#include "csrc/aten/dtypes/WiderTypes.h"
#include "csrc/aten/launch/DeviceCheck.h"
#include "torch_openreg/core/Launch.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// What CUDA runs for an operator such as "aten::add.out", as far as devices matter.
struct CudaKernel {
  explicit CudaKernel(const c10::OperatorHandle& op);

  // The name, after "wrapper_CUDA_", of the wrapper that checks devices; null if there is none.
  const char* checking_wrapper = nullptr;
  // The alias key of the kernel that composes the operator of others, if CUDA has none of its own.
  // None if it accesses memory on the host, or does not support this device.
  std::optional<c10::DispatchKey> composition;
};

// Throws the error of the wrapper `name` unless the arguments that it checks are on one device:
// those that are written, and those that are not passed by keyword.
OPENREG_EXPORT void checkDevices(const char* name, const c10::FunctionSchema& schema,
                                 c10::ArrayRef<c10::IValue> arguments,
                                 c10::DispatchKey functionality);

// The same for the operator's own wrapper, if one checks, and strided tensors.
OPENREG_EXPORT void checkDevices(const c10::OperatorHandle& op,
                                 c10::ArrayRef<c10::IValue> arguments);

// Whether the argument may be this CPU tensor in a call with tensors of the device, for an operator
// whose wrapper does not check devices.
bool takesCpuTensor(const std::string& operator_name, const c10::Argument& argument,
                    const Tensor& tensor);

// The alias key of the kernel that ATen composes of other operators, if the operator has one.
// Kernels for CompositeExplicitAutogradNonFunctional are for strided tensors.
OPENREG_EXPORT std::optional<c10::DispatchKey> compositionOf(const c10::OperatorHandle& op,
                                                             bool is_strided);

namespace detail {

// isOnOtherDevice for any argument of a kernel.
inline bool isOnOther(std::optional<c10::Device>& common, const Tensor& tensor) {
  return isOnOtherDevice(common, tensor);
}
inline bool isOnOther(std::optional<c10::Device>& common, const std::optional<Tensor>& tensor) {
  return tensor.has_value() && isOnOtherDevice(common, *tensor);
}
template <typename Other>
bool isOnOther(std::optional<c10::Device>& /*common*/, const Other& /*argument*/) {
  return false;
}

}  // namespace detail

// A hand-written kernel that checks devices first, if the wrapper of CUDA's does:
//   m.impl("equal", &DeviceCheckingKernel<"aten::equal", &equal>::call);
template <c10::openreg::KernelName Name, auto Kernel, typename Function = decltype(Kernel)>
struct DeviceCheckingKernel;

template <c10::openreg::KernelName Name, auto Kernel, typename Result, typename... Args>
struct DeviceCheckingKernel<Name, Kernel, Result (*)(Args...)> {
  static Result call(Args... args) {
    std::optional<c10::Device> common;
    if (C10_UNLIKELY((detail::isOnOther(common, args) || ...))) {
      static const c10::OperatorHandle op = operatorOfName(Name.text);
      checkDevices(op, c10::impl::boxArgs<Args...>(args...));
    }
    return Kernel(std::forward<Args>(args)...);
  }
};

}  // namespace at::openreg
