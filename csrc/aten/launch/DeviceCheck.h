// The check that torch's wrappers of CUDA's kernels make: the tensors of a call are on one device.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>

#include <optional>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Whether the tensor is on another device than `common`, which the first defined tensor sets.
inline bool isOnOtherDevice(std::optional<c10::Device>& common, const Tensor& tensor) {
  if (!tensor.defined()) {
    return false;
  }
  const c10::Device device = tensor.device();
  return *(common.has_value() ? common : common = device) != device;
}

// Throws unless all tensors added are on one device; undefined tensors are on every device. A CPU
// tensor without dimensions is an error, too.
class OPENREG_EXPORT DeviceCheck {
 public:
  // `name`: what follows "wrapper_CUDA_" in the name of torch's wrapper, which the error text has.
  // It must outlive the check, as must the arguments' names. `functionality` is that of the kernel.
  explicit DeviceCheck(const char* name, c10::DispatchKey functionality = c10::DispatchKey::Dense)
      : name_(name), functionality_(functionality) {}

  DeviceCheck& add(const Tensor& tensor, const char* argument);
  DeviceCheck& add(const std::optional<Tensor>& tensor, const char* argument);
  DeviceCheck& add(const ITensorListRef& tensors, const char* argument);
  DeviceCheck& add(const c10::List<std::optional<Tensor>>& tensors, const char* argument);

 private:
  const char* name_;
  c10::DispatchKey functionality_;
  std::optional<c10::Device> device_;
};

}  // namespace at::openreg
