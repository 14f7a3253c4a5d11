// The caching allocator of one device.
//
// Note [Stream-ordered reuse]
// A freed block can be reused at once on the stream for which it was allocated, because later work
// of that stream runs after its earlier work. Other streams that used it must have been named by
// record_stream; the block then waits for an event on each of them. So neither a free nor, as long
// as the cache or the device has room, an allocation waits for work.
//
// Note [Two locks]
// mutex_ guards the state. It is not held during waits, neither for work nor for room in a stream's
// queue. So a thread that frees or allocates never waits for a thread that waits for the device.
// Threads that must wait, to release memory, hold waiting_mutex_ meanwhile: otherwise one would
// miss the memory that another is about to release. It is locked first, and never with the GIL
// held.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/memory/BlockCache.h"
#include "csrc/memory/PendingFrees.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// Any thread may call any function at any time. Sizes are bytes.
class DeviceCachingAllocator {
 public:
  explicit DeviceCachingAllocator(DeviceIndex device) : device_(device), cache_(device) {}

  // Returns a block of at least `size` bytes (size > 0) for use on the stream. The allocator owns
  // it; return it with free(). If neither the cache nor the device has room, it waits for the
  // device, without the GIL.
  // Errors: OutOfMemoryError, after cached memory was released and a second attempt failed.
  Block* allocate(size_t size, const OpenRegStream& stream);

  // Frees a block, to be reused in stream order. Never throws. Never waits for work; if the queue
  // of a stream that recordStream() named is full, it waits for room there, as any submission does.
  void free(Block* block) noexcept;

  // The stream for which the block was allocated, and those named by recordStream().
  std::vector<OpenRegStream> streamsOf(Block* block);

  // Keeps the block from being reused before the stream's current work is done.
  void recordStream(Block* block, const OpenRegStream& stream);

  // Releases all segments without a block in use to the device: those of the default pools and of
  // private pools without users; given the id of a private pool, those of that pool. Waits for the
  // device. The caller must not hold the GIL.
  void emptyCache(MempoolId_t pool);

  // Waits until no freed block waits for another stream, but for streams that capture. The caller
  // must not hold the GIL.
  void finishPendingFrees();

  // Calls a function with the blocks, under the lock: for their pools, limits, statistics, state
  // and history. It must not call the allocator.
  template <typename Function>
  auto locked(const Function& function) OPENREG_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    return function(cache_);
  }

 private:
  // These lock the mutex themselves.
  Block* tryAllocate(const BlockRequest& request) OPENREG_EXCLUDES(mutex_);
  Block* retryAllocate(const BlockRequest& request) OPENREG_EXCLUDES(waiting_mutex_, mutex_);
  Block* take(const BlockRequest& request) OPENREG_EXCLUDES(mutex_);
  void recordPendingUses() noexcept OPENREG_EXCLUDES(mutex_);
  void waitForOtherStreams() OPENREG_REQUIRES(waiting_mutex_) OPENREG_EXCLUDES(mutex_);
  [[noreturn]] void throwOutOfMemory(const BlockRequest& request) OPENREG_EXCLUDES(mutex_);

  void giveBack(const std::vector<Block*>& segments) OPENREG_REQUIRES(waiting_mutex_)
      OPENREG_EXCLUDES(mutex_);
  void finishPendingUses() OPENREG_REQUIRES(mutex_);

  const DeviceIndex device_;
  Mutex waiting_mutex_ OPENREG_ACQUIRED_BEFORE(mutex_);  // see Note [Two locks]
  Mutex mutex_;
  BlockCache cache_ OPENREG_GUARDED_BY(mutex_);
  PendingFrees pending_ OPENREG_GUARDED_BY(mutex_);
  std::atomic<bool> has_unrecorded_uses_{false};  // pending_.hasUnrecorded(); read at any time
};

}  // namespace c10::openreg
