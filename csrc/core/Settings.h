// The backend's access to the settings table: Note [Settings table] in openreg/setting.h.
#pragma once

#include <openreg/setting.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// The setting's value in the environment when the settings were read, or its default. Lives as long
// as the process. Reads the table at each call, so callers should cache the result.
// Errors: c10::AcceleratorError if any setting has an invalid value.
OPENREG_EXPORT std::string_view settingText(orSettingIndex setting);

// Whether a setting that allows 0 or 1 is 1. Otherwise as settingText().
OPENREG_EXPORT bool isSettingOn(orSettingIndex setting);

// The environment settings that leave the process without a device, for error texts.
OPENREG_EXPORT std::string whyNoDevice();

// The value of a setting that is a size, in bytes. Otherwise as settingText().
OPENREG_EXPORT size_t sizeSetting(orSettingIndex setting);

}  // namespace c10::openreg
