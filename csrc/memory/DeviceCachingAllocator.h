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

  // --- Private pools; see Note [Memory of graphs]

  // Creates a pool, or adds a user to it.
  void retainPool(MempoolId_t id);

  // Sets the options of a pool that has a user.
  void setPoolOptions(MempoolId_t id, PoolOptions options);

  // Removes a user. The memory of a pool without users is released when the cache is emptied.
  void releasePool(MempoolId_t id);

  // The number of users of a pool; 0 if there is no such pool.
  int poolUseCount(MempoolId_t id);

  // Adds a user. Until endAllocateToPool(), allocations on streams that the filter accepts come
  // from the pool. If several filters accept a stream, the latest call takes precedence.
  // Errors: RuntimeError if the pool is already being allocated to.
  void beginAllocateToPool(MempoolId_t id, StreamFilter filter);

  // Ends the redirection, and keeps the user.
  // Errors: RuntimeError if the pool is not being allocated to.
  void endAllocateToPool(MempoolId_t id);

  // --- Limits

  // Limits the reserved memory to a fraction of the capacity, 0 to 1.
  void setMemoryFraction(double fraction);
  double memoryFraction();

  // --- Statistics, state and history

  CachingDeviceAllocator::DeviceStats stats();
  void resetAccumulatedStats();
  void resetPeakStats();

  // Bytes in use and bytes held, for the profiler's memory events.
  std::pair<size_t, size_t> usage();

  // All segments and their blocks, in address order; only those of one private pool unless the id
  // is {0, 0}.
  std::vector<CachingDeviceAllocator::SegmentInfo> snapshot(MempoolId_t pool);

  std::vector<MemoryHistory::TraceEntry> history();
  void clearHistory();

  // Checks every invariant: blocks tile their segments, neighbors are merged, pools hold exactly
  // the free blocks, the statistics add up.
  bool isValid();

  // A check of guard zones and free blocks; see Note [Poison]. Between the two calls, the caller
  // waits for all devices. The result of the first call is the argument of the second.
  uint32_t beginCheck();
  std::vector<Corruption> findCorruptions(uint32_t check);

 private:
  // These lock the mutex themselves.
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
