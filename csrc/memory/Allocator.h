// The device allocator that c10 knows: routes to the cache of the device concerned.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "csrc/core/Macros.h"

namespace c10::openreg {

// Whether every invariant of the device's cache holds; for tests.
OPENREG_EXPORT bool isAllocatorValid(DeviceIndex device);

}  // namespace c10::openreg
