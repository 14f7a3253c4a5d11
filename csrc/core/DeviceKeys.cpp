#include "torch_openreg/core/DeviceKeys.h"

#include "csrc/core/DeviceForm.h"

namespace c10::openreg {

DeviceType servedDeviceType() noexcept { return deviceForm().type(); }

bool servesCuda() noexcept { return servedDeviceType() == DeviceType::CUDA; }

}  // namespace c10::openreg
