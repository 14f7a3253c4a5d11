// Settings: the environment variables that the parts of the backend read. The runtime reads and
// checks them together with its own; see Note [Settings table] in openreg/setting.h.
#pragma once

#include <openreg/setting.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// A setting, declared as a constant in the file that reads it:
//   const Setting kPoison{"OPENREG_MEMORY_POISON", "0", "0 1", "1: unused memory ..."};
// The documentation's table is made from these declarations. The values are read at each call, so
// callers should cache them.
//   Errors: c10::AcceleratorError if any setting has an invalid value.
class OPENREG_EXPORT Setting {
 public:
  // The name of the variable, its default, the values that it may have, as for orDeclareSetting,
  // what the setting does, and the values for people unless all of them are words.
  Setting(const char* variable, const char* default_text, const char* values,
          const char* description, const char* allowed = nullptr);

  // The value in the environment when the settings were read, or the default. Lives as long as the
  // process.
  std::string_view text() const;

  // For a setting that allows 0 or 1: whether it is 1.
  bool isOn() const;

  // For a setting that is a size: its value in bytes.
  size_t bytes() const;

 private:
  int index_ = -1;
};

// The environment settings that leave the process without a device, for error texts.
OPENREG_EXPORT std::string whyNoDevice();

}  // namespace c10::openreg
