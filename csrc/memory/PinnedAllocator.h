// Pinned host memory, cached by at::CachingHostAllocatorImpl. Registered with ATen as the host
// allocator of the device type; obtain it by at::getHostAllocator.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Whether the pointer is in pinned memory, or in registered memory. Creates no device.
OPENREG_EXPORT bool isPinnedPointer(const void* pointer);

// Makes host memory count as pinned: copies from and to it may be asynchronous, and the program
// must keep it until they are done. Returns false if a part of it is pinned already, or if the size
// is 0.
OPENREG_EXPORT bool registerHostMemory(size_t address, size_t size);

// Ends the registration. Returns false for an address that was not registered.
OPENREG_EXPORT bool unregisterHostMemory(size_t address);

}  // namespace at::openreg
