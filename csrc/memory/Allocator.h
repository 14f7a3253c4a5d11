// The device allocator that c10 knows: routes to the cache of the device concerned.
//
// In all functions a device index is one that exists, not a negative one.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <functional>
#include <vector>

#include "csrc/memory/MemoryHistory.h"
#include "csrc/memory/MemoryPoison.h"
#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// --- Memory without a tensor

// Allocates for a stream of the device. Returns null for a size of 0.
OPENREG_EXPORT void* rawAllocate(size_t size, const OpenRegStream& stream);

// Frees what rawAllocate() returned. Null is allowed.
// Errors: ValueError for another pointer.
OPENREG_EXPORT void rawFree(void* pointer);

// --- Limits and recovery

// Limits what a device's allocator may reserve to a share of the capacity.
// Errors: ValueError unless 0 <= fraction <= 1.
OPENREG_EXPORT void setMemoryFraction(DeviceIndex device, double fraction);
OPENREG_EXPORT double memoryFraction(DeviceIndex device);

// Adds a function that is called, in any thread and without a lock, when a device has no memory
// left and before the cache is given up: it may free memory that it keeps. Stays for the life of
// the process.
OPENREG_EXPORT void addFreeMemoryCallback(std::function<void()> callback);

// Calls them, in the order they were added.
void runFreeMemoryCallbacks();

// Takes the device, the bytes that were asked for, how many the process may reserve there, and how
// many of the device are free.
using OutOfMemoryObserver = std::function<void(DeviceIndex, size_t, size_t, size_t)>;

// Adds a function that is called when an allocation fails, before it throws: in the thread that
// allocates, without a lock. Stays for the life of the process.
OPENREG_EXPORT void addOutOfMemoryObserver(OutOfMemoryObserver observer);

// Calls them, in the order they were added.
void tellOutOfMemory(DeviceIndex device, size_t requested, size_t allowed, size_t free);

// --- Private pools; see Note [Memory of graphs] in BlockCache.h

// Returns an id that no pool has had: (n, 0), or (0, n) for a pool that the user asked for.
OPENREG_EXPORT MempoolId_t createPoolId(bool by_user);

// Creates a device's pool, or adds a user to it; takes a user away. A pool without users gives its
// memory back when the cache is emptied.
OPENREG_EXPORT void retainPool(DeviceIndex device, MempoolId_t id);
void setPoolOptions(DeviceIndex device, MempoolId_t id, PoolOptions options);
OPENREG_EXPORT void releasePool(DeviceIndex device, MempoolId_t id);
OPENREG_EXPORT int poolUseCount(DeviceIndex device, MempoolId_t id);

// Retains the pool and lets allocations on the streams that the filter picks come from it. The
// filter is called in the allocating thread, under a lock: it must not allocate.
OPENREG_EXPORT void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                                        std::function<bool(const OpenRegStream&)> filter);

// Ends the redirection, not the use.
OPENREG_EXPORT void endAllocateToPool(DeviceIndex device, MempoolId_t id);

// Gives what is unused in one pool back to the device.
OPENREG_EXPORT void emptyPool(DeviceIndex device, MempoolId_t id);

// --- What there is, and what happened

// The segments of all devices that are active; of one private pool unless the id is {0, 0}.
OPENREG_EXPORT std::vector<CachingDeviceAllocator::SegmentInfo> memorySnapshot(MempoolId_t pool);

// Turns the history on or off, for all devices. Entries so far stay if it is turned on and does not
// clear them.
OPENREG_EXPORT void recordMemoryHistory(const HistorySettings& settings, bool clears);

// The entries of a device.
OPENREG_EXPORT std::vector<MemoryHistory::TraceEntry> memoryHistory(DeviceIndex device);

// Checks guard zones and free memory of all devices; see Note [Poison]. Waits for the devices.
OPENREG_EXPORT std::vector<Corruption> findCorruptions();

// Whether every invariant of the device's cache holds; for tests.
OPENREG_EXPORT bool isAllocatorValid(DeviceIndex device);

}  // namespace c10::openreg
