// The device's name in texts.
#pragma once

#include <c10/core/DeviceType.h>

#include <string>

#include "csrc/core/DeviceForm.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace c10::openreg {

// A backend that is made of this one has its names here: the device's for people, and that of the
// device type, which torch does not know yet when the libraries are loaded.
inline constexpr const char* kDeviceName = "OpenReg";
inline constexpr const char* kTypeName = "openreg";

// That of the device type in use.
inline const char* deviceName() noexcept { return deviceForm().name(); }

// The module with the functions that programs call: "torch.openreg" or "torch.cuda".
inline std::string moduleName() {
  return "torch." + DeviceTypeName(kDeviceType, /*lower_case=*/true);
}

// Registers something with torch under the name of the device type: calls the function with
// kTypeName, and with the name that Python gives the device type, if that is another one.
using RegisterByName = void (*)(const std::string& type_name);
void registerByTypeName(RegisterByName function);

// Call when the device type has its name.
OPENREG_EXPORT void announceTypeName();

}  // namespace c10::openreg
