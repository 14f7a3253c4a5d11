// The text of torch.OutOfMemoryError.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace c10::openreg {

// An allocation that has failed, and the device's memory at that time. Sizes are bytes.
struct OutOfMemory {
  DeviceIndex device;
  size_t requested;
  size_t segment;             // what the cache tried to reserve
  size_t total;               // of the device
  size_t free;                // of the device
  size_t allowed;             // what the process may reserve
  size_t allocated;           // in blocks that are in use
  size_t reserved;            // in segments
  size_t reserved_privately;  // in segments of private pools
};

std::string describe(const OutOfMemory& failed);

// What a program can do; follows the numbers.
std::string adviceOnMemory();

// Installs another text, before the static objects of the library (csrc/core/DeviceForm.h).
using OutOfMemoryText = std::string (*)(const OutOfMemory& failed);
void setOutOfMemoryText(OutOfMemoryText text) noexcept;

}  // namespace c10::openreg
