// Allocations: device memory and pinned host memory, and what a pointer points at.
//
// Lock order: the lock of pinned memory, then the arenas' by device number. Only a fork holds more
// than one.
#pragma once

#include <openreg/memory.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace openreg {

// Where `size` bytes from a pointer lie.
struct Place {
  orMemoryType type;
  int device;            // -1 unless type is orMemoryTypeDevice
  void* kernel_address;  // where the bytes can be read and written
};

// Finds the place of a range of more than 0 bytes. Fails with orErrorIllegalAddress if it begins
// in device memory that is not allocated, orErrorInvalidValue if it leaves its device or pinned
// allocation, wraps around, or begins at a kernel address.
orError_t find_place(const void* pointer, size_t size, const char* function, Place* place);

}  // namespace openreg
