// What the fallback does when it makes the host wait.
#pragma once

#include <string>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

enum class FallbackMode { Silent, Warn, Error };

// The mode; initially the setting OPENREG_FALLBACK.
OPENREG_EXPORT FallbackMode fallbackMode();
OPENREG_EXPORT void setFallbackMode(FallbackMode mode);

// How often the mode was set, starting at 1: in mode "warn", an operator warns once per setting.
int fallbackModeNumber();

// A mode's name is "silent", "warn" or "error". parseFallbackMode throws ValueError for any other.
OPENREG_EXPORT const char* fallbackModeName(FallbackMode mode);
OPENREG_EXPORT FallbackMode parseFallbackMode(const std::string& name);

}  // namespace at::openreg
