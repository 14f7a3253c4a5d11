// Pinned host memory, cached by at::CachingHostAllocatorImpl. Registered with ATen as the host
// allocator of the device type; reach it through at::getHostAllocator.
#pragma once

#include <c10/core/Stream.h>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Whether the pointer lies in pinned memory of the runtime. Creates no device.
OPENREG_EXPORT bool isPinnedPointer(const void* pointer);

}  // namespace at::openreg
