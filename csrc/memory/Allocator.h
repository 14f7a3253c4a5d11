// The device allocator that is registered with c10. It forwards to the cache of each device.
//
// Device indexes must be valid and not negative in all functions.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <functional>
#include <vector>

#include "csrc/memory/BlockPool.h"
#include "csrc/memory/MemoryHistory.h"
#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// --- Memory without a tensor

// Allocates for a stream of the device. Returns null for a size of 0.
OPENREG_EXPORT void* rawAllocate(size_t size, const OpenRegStream& stream);

// Frees what rawAllocate() returned. Null is allowed.
// Errors: ValueError for another pointer.
OPENREG_EXPORT void rawFree(void* pointer);

// --- Limits

// Limits the memory that a device's allocator may reserve to a fraction of the capacity.
// Errors: ValueError unless 0 <= fraction <= 1.
OPENREG_EXPORT void setMemoryFraction(DeviceIndex device, double fraction);
OPENREG_EXPORT double memoryFraction(DeviceIndex device);

// --- Private pools; see Note [Memory of graphs] in BlockCache.h

// Returns an id that was not used before: (n, 0), or (0, n) for a pool that a program requested.
OPENREG_EXPORT MempoolId_t createPoolId(bool by_user);

// Removes a user of a device's pool. The memory of a pool without users is released when the cache
// is emptied.
OPENREG_EXPORT void releasePool(DeviceIndex device, MempoolId_t id);

// Retains the pool and uses it for allocations on the streams that the filter accepts. The filter
// is called on the allocating thread, under a lock, and must not allocate.
OPENREG_EXPORT void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                                        std::function<bool(const OpenRegStream&)> filter);

// Ends the redirection, but keeps the user.
OPENREG_EXPORT void endAllocateToPool(DeviceIndex device, MempoolId_t id);

// A program's own pool, of the current device, with this object as its user. Its memory is released
// when it has no user left.
class OPENREG_EXPORT MemPool {
 public:
  explicit MemPool(PoolOptions options = {});
  MemPool(const MemPool&) = delete;
  MemPool& operator=(const MemPool&) = delete;
  ~MemPool();

  DeviceIndex device() const { return device_; }
  MempoolId_t id() const { return id_; }
  int useCount() const;

 private:
  const DeviceIndex device_;
  const MempoolId_t id_;
};

// Adds a user: allocations of the calling thread on the device come from the pool until
// endAllocateOnThread(), which removes the user. A negative index means the current device.
OPENREG_EXPORT void beginAllocateOnThread(int64_t device, MempoolId_t pool);
OPENREG_EXPORT void endAllocateOnThread(int64_t device, MempoolId_t pool);

// --- Streams that use the memory of a DataPtr

// The streams of a block of the caching allocator: the one for which it was allocated, and those
// named by record_stream. Empty for other memory.
std::vector<OpenRegStream> streamsOf(const DataPtr& data);

// Memory that another part of the backend wraps in a DataPtr.
struct ForeignMemory {
  DeleterFnPtr deleter = nullptr;  // identifies the memory
  // Implements record_stream for such a DataPtr.
  void (*record_stream)(void* context, const OpenRegStream& stream) = nullptr;
};

// There is one kind. Set by a static initializer while the library is loaded.
ForeignMemory& foreignMemory();

// --- State and history

// The segments of all active devices; those of one private pool unless the id is {0, 0}.
OPENREG_EXPORT std::vector<CachingDeviceAllocator::SegmentInfo> memorySnapshot(MempoolId_t pool);

// Turns the history on or off for all devices. Existing entries are kept if it is turned on without
// `clears`.
OPENREG_EXPORT void recordMemoryHistory(const HistorySettings& settings, bool clears);

// The entries of a device.
OPENREG_EXPORT std::vector<MemoryHistory::TraceEntry> memoryHistory(DeviceIndex device);

// Calls a function with each block of all active devices, under the lock of the device's allocator,
// which the function must not call.
OPENREG_EXPORT void forEachBlock(const std::function<void(const Block&)>& function);

// Waits until no freed block waits for another stream, but for streams that capture. The caller
// must not hold the GIL.
OPENREG_EXPORT void finishPendingFrees();

// Whether every invariant of the device's cache holds; for tests.
OPENREG_EXPORT bool isAllocatorValid(DeviceIndex device);

}  // namespace c10::openreg
