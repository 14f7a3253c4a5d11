// The device's name in texts.
#pragma once

#include <c10/core/DeviceType.h>

#include <string>

#include "torch_openreg/core/DeviceKeys.h"

namespace c10::openreg {

// A backend that is made of this one has its names here: the device's for people, and that of the
// device type, which torch does not know yet when the libraries are loaded.
inline constexpr const char* kDeviceName = "OpenReg";
inline constexpr const char* kTypeName = "openreg";

// "CUDA" where the library serves CUDA.
inline const char* deviceName() noexcept { return servesCuda() ? "CUDA" : kDeviceName; }

// The module with the functions that programs call: "torch.openreg" or "torch.cuda".
inline std::string moduleName() {
  return "torch." + DeviceTypeName(kDeviceType, /*lower_case=*/true);
}

}  // namespace c10::openreg
