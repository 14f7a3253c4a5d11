// What the backend reads of the settings, which are one table: Note [Settings table] in
// openreg/setting.h.
#pragma once

#include <openreg/setting.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// What the environment said when the settings were read, or the default. Lives as long as the
// process. Reads the table anew at each call: keep the answer.
// Errors: c10::AcceleratorError if any setting has a bad value.
OPENREG_EXPORT std::string_view settingText(orSettingIndex setting);

// Whether a setting that allows 0 or 1 is 1. The rest is as for settingText.
OPENREG_EXPORT bool isSettingOn(orSettingIndex setting);

// Which settings of the environment leave the process without a device, for error texts.
OPENREG_EXPORT std::string whyNoDevice();

// The value of a setting that is a size, in bytes. The rest is as for settingText.
OPENREG_EXPORT size_t sizeSetting(orSettingIndex setting);

}  // namespace c10::openreg
