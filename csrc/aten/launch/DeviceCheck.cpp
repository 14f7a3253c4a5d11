#include "csrc/aten/launch/DeviceCheck.h"

#include <ATen/core/op_registration/adaption.h>

#include <string>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {

DeviceCheck& DeviceCheck::add(const Tensor& tensor, const char* argument) {
  if (!tensor.defined()) {
    return *this;
  }
  if (!device_.has_value()) {
    device_ = tensor.device();
  } else if (C10_UNLIKELY(*device_ != tensor.device())) {
    const std::string wrapper =
        std::string("wrapper_") + c10::toString(c10::openreg::keyOf(functionality_)) + "_" + name_;
    c10::impl::common_device_check_failure(*device_, tensor, wrapper.c_str(), argument);
  }
  return *this;
}

DeviceCheck& DeviceCheck::add(const std::optional<Tensor>& tensor, const char* argument) {
  if (tensor.has_value()) {
    add(*tensor, argument);
  }
  return *this;
}

DeviceCheck& DeviceCheck::add(const ITensorListRef& tensors, const char* argument) {
  for (const Tensor& tensor : tensors) {
    add(tensor, argument);
  }
  return *this;
}

DeviceCheck& DeviceCheck::add(const c10::List<std::optional<Tensor>>& tensors,
                              const char* argument) {
  for (const std::optional<Tensor> tensor : tensors) {
    add(tensor, argument);
  }
  return *this;
}

}  // namespace at::openreg
