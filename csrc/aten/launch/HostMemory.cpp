#include "csrc/aten/launch/HostMemory.h"

#include <openreg/memory.h>

#include "torch_openreg/core/Exception.h"

namespace at::openreg {

bool hasKernelAddress(const TensorBase& host) {
  if (host.layout() != kStrided || !host.has_storage()) {
    return false;
  }
  const void* address = host.storage().data();
  void* kernel_address = nullptr;
  OPENREG_CHECK(orHostGetKernelPointer(&kernel_address, address));
  return kernel_address != address;
}

}  // namespace at::openreg
