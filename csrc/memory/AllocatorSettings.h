// The part of torch's allocator settings (PYTORCH_ALLOC_CONF) that c10 does not parse.
//
// c10's AcceleratorAllocatorConfig parses the keys that all accelerators share. It passes keys that
// a backend has registered to the backend's hook, and rejects all others with a ValueError.
#pragma once

#include <string>
#include <vector>

namespace c10::openreg {

// Keys that c10 does not know, and the check of their values in a text of settings, which c10 has
// parsed.
struct AllocatorKeys {
  std::vector<std::string> (*names)() = nullptr;
  void (*check)(const std::string& settings) = nullptr;
};

// Installs them, before the static objects of the library (csrc/core/DeviceForm.h).
void setAllocatorKeys(const AllocatorKeys& keys) noexcept;

// Checks the settings in the environment. c10 makes the same check for settings that a program
// changes.
// Errors: c10's ValueError for settings that it cannot parse; ValueError for an invalid value of a
// key that is registered here.
void checkAllocatorSettings();

// The fraction of its capacity that a device may reserve at its first use.
double initialMemoryFraction();
void setInitialMemoryFraction(double fraction);

}  // namespace c10::openreg
