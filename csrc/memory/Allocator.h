// The device allocator that c10 knows: routes to the cache of the device concerned.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <vector>

#include "csrc/core/Macros.h"
#include "csrc/core/Stream.h"

namespace c10::openreg {

// Memory that another part of the backend puts behind DataPtrs, with a deleter of its own. From
// then on record_stream on such a DataPtr calls the function with its context.
void registerForeignMemory(DeleterFnPtr deleter,
                           void (*record_stream)(void* context, const OpenRegStream& stream));

// The streams that the memory belongs to: the one it was allocated for, and those that
// record_stream named. Empty if it is not the allocator's.
std::vector<OpenRegStream> streamsOf(const DataPtr& data);

// Whether every invariant of the device's cache holds; for tests.
OPENREG_EXPORT bool isAllocatorValid(DeviceIndex device);

}  // namespace c10::openreg
