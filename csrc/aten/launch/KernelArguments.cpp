#include "torch_openreg/aten/KernelArguments.h"

namespace at::openreg {

void checkSameDevice(const char* operation, c10::Device device,
                     std::initializer_list<const TensorBase*> tensors) {
  for (const TensorBase* tensor : tensors) {
    TORCH_CHECK(!tensor->defined() || tensor->device() == device ||
                    (tensor->is_cpu() && tensor->dim() == 0),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device, " and ", tensor->device(), "!\nThe operator is ", operation);
  }
}

}  // namespace at::openreg
