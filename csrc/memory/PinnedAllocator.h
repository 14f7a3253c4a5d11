// Pinned host memory, cached by at::CachingHostAllocatorImpl. Registered with ATen as the host
// allocator of the device type; reach it through at::getHostAllocator.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Whether the pointer lies in pinned memory of the runtime, or in memory that was registered.
// Creates no device.
OPENREG_EXPORT bool isPinnedPointer(const void* pointer);

// Has memory of the host count as pinned: copies from and to it may be asynchronous, and then the
// program keeps it until they are done. Returns whether it does: false if a part of it is pinned
// already, and for a size of 0.
OPENREG_EXPORT bool registerHostMemory(size_t address, size_t size);

// Ends that. Returns false for an address that registerHostMemory() did not get.
OPENREG_EXPORT bool unregisterHostMemory(size_t address);

}  // namespace at::openreg
