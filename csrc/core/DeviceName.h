// The device's name in texts.
#pragma once

#include "torch_openreg/core/DeviceKeys.h"

namespace c10::openreg {

// A backend that is made of this one has its name here.
inline constexpr const char* kDeviceName = "OpenReg";

// "CUDA" where the library serves CUDA.
inline const char* deviceName() noexcept { return servesCuda() ? "CUDA" : kDeviceName; }

}  // namespace c10::openreg
