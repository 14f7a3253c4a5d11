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
//
// Note [Memory of graphs]
// A graph's kernels run again at the addresses they were captured with. So what a capture
// allocates comes from a private pool, which gives memory to nobody else while the graph lives.
// Within the pool, blocks are reused as elsewhere: in the order of the stream, which is the order
// of every replay. An event recorded on a capturing stream would be part of the graph and say
// nothing to the host, so a block that needs one waits until that stream's capture has ended.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "csrc/memory/BlockPool.h"
#include "csrc/memory/MemoryHistory.h"
#include "csrc/memory/MemoryPoison.h"
#include "csrc/memory/MemorySnapshot.h"
#include "csrc/memory/MemoryStatistics.h"
#include "csrc/memory/PendingFrees.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// Any thread may call any function at any time. Sizes are bytes.
class DeviceCachingAllocator {
 public:
  using StreamFilter = std::function<bool(const OpenRegStream&)>;

  explicit DeviceCachingAllocator(DeviceIndex device) : device_(device) {}

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

  // Checks every invariant: blocks tile their segments, neighbours are merged, pools hold exactly
  // the free blocks, the statistics add up.
  bool isValid();

  // A check of guard zones and free blocks; see Note [Poison]. Between the two calls, the caller
  // waits for all devices. The number that the first returns is the second's argument.
  uint32_t beginCheck();
  std::vector<Corruption> findCorruptions(uint32_t check);

 private:
  using TraceEntry = CachingDeviceAllocator::TraceEntry;

  // What one call of allocate() is after.
  struct Request {
    size_t size;     // as asked for
    size_t rounded;  // of the block
    OpenRegStream stream;
    std::shared_ptr<GatheredContext> context;
    BlockPool* pool = nullptr;  // found under the lock, and valid until it is given up
  };

  // These take the lock themselves.
  Block* tryAllocate(Request& request);
  Block* retryAllocate(Request& request);
  Block* take(Request& request);
  void recordPendingUses() noexcept;
  void waitForOtherStreams();
  [[noreturn]] void throwOutOfMemory(const Request& request);

  // Gives segments back that were detached. Needs no lock; waits for the device.
  void giveBack(const std::vector<Block*>& segments);

  // The caller of all others holds the lock.
  BlockPool& poolFor(const Request& request);
  PrivatePool& findOrCreatePool(MempoolId_t id);
  template <typename Visit>
  void forEachPool(Visit&& visit);
  const OpenRegStream* keep(const OpenRegStream& stream);

  Block* takeFromCache(const Request& request);
  Block* takeFromDevice(const Request& request);
  Block* handOut(Block* block, const Request& request);
  size_t limit() const;
  void splitIfWorthwhile(Block* block, size_t size);
  void makeFree(Block* block);
  Block* join(Block* lower, Block* upper);
  void finishPendingUses();

  bool isGarbageDue() const;
  std::vector<Block*> detachGarbage();
  void detachFreeSegments(BlockPool& pool, std::vector<Block*>& segments);
  void detachCachedSegments(std::vector<Block*>& segments);
  void detachSegment(Block* block, std::vector<Block*>& segments);

  void record(TraceEntry::Action action, size_t address, size_t size, const OpenRegStream& stream,
              MempoolId_t pool, std::shared_ptr<GatheredContext> context);
  void record(TraceEntry::Action action, const Block& block,
              const std::shared_ptr<GatheredContext>& context) {
    if (C10_UNLIKELY(isHistoryEnabled())) {
      record(action, reinterpret_cast<size_t>(block.address), block.size, *block.stream,
             block.pool->id(), context);
    }
  }

  const DeviceIndex device_;
  std::mutex waiting_mutex_;  // see Note [Two locks]
  std::mutex mutex_;          // guards everything below
  BlockPool small_{CachingAllocator::StatType::SMALL_POOL, nullptr};
  BlockPool large_{CachingAllocator::StatType::LARGE_POOL, nullptr};
  std::map<MempoolId_t, PrivatePool> private_pools_;
  std::vector<std::pair<PrivatePool*, StreamFilter>> allocating_to_;
  Segments segments_;
  std::unordered_set<OpenRegStream> streams_;  // that blocks belong to; never shrinks
  PendingFrees pending_;
  std::atomic<bool> has_unrecorded_uses_{false};  // pending_.hasUnrecorded(); read at any time
  uint64_t search_count_ = 0;                     // of the cache: the clock of garbage collection
  uint32_t check_count_ = 0;                      // of beginCheck()
  PoisonedRanges poisoned_;
  double memory_fraction_ = 1.0;
  MemoryStatistics statistics_;
  MemoryHistory history_;
};

}  // namespace c10::openreg
