// The cache of one device's memory.
//
// Note [Stream-ordered reuse]
// A freed block may be given out again at once on the stream it was allocated for: whatever
// uses it next is enqueued after what used it before. Another stream that used it must have
// been named by record_stream; the block then waits for an event on that stream. So neither
// freeing waits for work, nor allocating while the cache or the device has room.
//
// Note [Two locks]
// mutex_ guards the state. Nothing waits while it is held: neither for work, nor for room in a
// stream's queue. So nobody who frees or allocates waits for a thread that waits for the device.
// Those who do wait, to give memory back, take turns by waiting_mutex_, which they hold meanwhile:
// what one gives back would be missed by another that looks for memory at the same time. It is
// taken first, and by nobody who holds the GIL.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <utility>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/memory/BlockCache.h"
#include "csrc/memory/PendingFrees.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// Any thread may call any function at any time. Sizes are bytes.
class DeviceCachingAllocator {
 public:
  using StreamFilter = BlockCache::StreamFilter;

  explicit DeviceCachingAllocator(DeviceIndex device) : device_(device), cache_(device) {}

  // Returns a block of at least `size` bytes (size > 0) for use on the stream. It stays the
  // allocator's; hand it back to free(). If neither the cache nor the device has room, it waits for
  // the device, without the GIL.
  // Errors: OutOfMemoryError, after cached memory was given back and a second try.
  Block* allocate(size_t size, const OpenRegStream& stream);

  // Takes a block back, to be reused in stream order. Never throws. Never waits for work; if the
  // queue of a stream that recordStream() named is full, it waits for room there, as any
  // submission.
  void free(Block* block) noexcept;

  // The stream that the block was allocated for, and those that recordStream() named.
  std::vector<OpenRegStream> streamsOf(Block* block);

  // Keeps the block from being reused before the work now on the stream is done.
  void recordStream(Block* block, const OpenRegStream& stream);

  // Returns all segments without a block in use to the device: those of the default pools and of
  // private pools without users or, given the id of a private pool, those of that one. Waits for
  // the device. The caller does not hold the GIL.
  void emptyCache(MempoolId_t pool);

  // --- Private pools; see Note [Memory of graphs]

  // Creates a pool, or adds a user to it.
  void retainPool(MempoolId_t id);

  // What the pool, which has a user, does where it differs from other pools.
  void setPoolOptions(MempoolId_t id, PoolOptions options);

  // Takes a user away. Without users a pool's memory goes back when the cache is emptied.
  void releasePool(MempoolId_t id);

  // How many users a pool has; 0 if there is no such pool.
  int poolUseCount(MempoolId_t id);

  // Adds a user; until endAllocateToPool() allocations on the streams that the filter picks come
  // from the pool. Of several pools whose filters do, it is the one of the latest call.
  // Errors: RuntimeError if the pool is already being allocated to.
  void beginAllocateToPool(MempoolId_t id, StreamFilter filter);

  // Ends that. The user stays.
  // Errors: RuntimeError if nothing is being allocated to the pool.
  void endAllocateToPool(MempoolId_t id);

  // --- Limits

  // Limits what is reserved to a share of the capacity, 0 to 1.
  void setMemoryFraction(double fraction);
  double memoryFraction();

  // --- Statistics, state and history

  CachingDeviceAllocator::DeviceStats stats();
  void resetAccumulatedStats();
  void resetPeakStats();

  // Bytes in use and bytes held, for the profiler's memory events.
  std::pair<size_t, size_t> usage();

  // All segments and their blocks, in address order; those of one private pool if an id other
  // than {0, 0} is given.
  std::vector<CachingDeviceAllocator::SegmentInfo> snapshot(MempoolId_t pool);

  std::vector<MemoryHistory::TraceEntry> history();
  void clearHistory();

  // Checks every invariant: blocks tile their segments, neighbors are merged, pools hold exactly
  // the free blocks, the statistics add up.
  bool isValid();

  // A check of guard zones and free blocks; see Note [Poison]. Between the two calls, the caller
  // waits for all devices. The number that the first returns is the second's argument.
  uint32_t beginCheck();
  std::vector<Corruption> findCorruptions(uint32_t check);

 private:
  // These take the lock themselves.
  Block* tryAllocate(const BlockRequest& request) OPENREG_EXCLUDES(mutex_);
  Block* retryAllocate(const BlockRequest& request) OPENREG_EXCLUDES(waiting_mutex_, mutex_);
  Block* take(const BlockRequest& request) OPENREG_EXCLUDES(mutex_);
  bool quarantine(Block* block, const std::shared_ptr<GatheredContext>& context) noexcept
      OPENREG_EXCLUDES(mutex_);
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
