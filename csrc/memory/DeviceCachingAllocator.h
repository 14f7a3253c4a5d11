// The cache of one device's memory.
//
// Note [Stream-ordered reuse]
// A freed block may be given out again at once on the stream it was allocated for: whatever
// uses it next is enqueued after what used it before. Another stream that used it must have
// been named by record_stream; the block then waits for an event on that stream. So freeing
// never waits, and neither does allocating while the cache has a block.
//
// Note [Memory of graphs]
// A graph's kernels run again at the addresses they were captured with. So what a capture
// allocates comes from a private pool, which gives memory to nobody else while the graph lives.
// Within the pool, blocks are reused as elsewhere: in the order of the stream, which is the order
// of every replay. An event recorded on a capturing stream would be part of the graph and say
// nothing to the host, so a block that needs one waits until that stream's capture has ended.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/memory/BlockPool.h"
#include "csrc/memory/MemoryHistory.h"
#include "csrc/memory/MemoryPoison.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// Any thread may call any function at any time. Sizes are bytes.
class DeviceCachingAllocator {
 public:
  using StreamFilter = std::function<bool(const OpenRegStream&)>;

  explicit DeviceCachingAllocator(DeviceIndex device) : device_(device) {}

  // Returns a block of at least `size` bytes (size > 0) for use on the stream. It stays the
  // allocator's; hand it back to free().
  // Errors: OutOfMemoryError, after cached memory was given back and a second try.
  Block* allocate(size_t size, const OpenRegStream& stream);

  // Takes a block back, to be reused in stream order. Never waits and never throws.
  void free(Block* block) noexcept;

  // The stream that the block was allocated for, and those that recordStream() named.
  std::vector<OpenRegStream> streamsOf(Block* block);

  // Keeps the block from being reused before the work now on the stream is done.
  void recordStream(Block* block, const OpenRegStream& stream);

  // Returns all segments without a block in use to the device: those of the default pools and of
  // private pools without users or, given the id of a private pool, those of that one.
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

  // Compares guard zones and free blocks with the pattern; see Note [Poison]. Waits for the device.
  std::vector<Corruption> findCorruptions();

 private:
  using DeviceStats = CachingDeviceAllocator::DeviceStats;
  using TraceEntry = CachingDeviceAllocator::TraceEntry;

  // What one call of allocate() is after.
  struct Request {
    size_t size;     // as asked for
    size_t rounded;  // of the block
    OpenRegStream stream;
    std::shared_ptr<GatheredContext> context;
    BlockPool* pool = nullptr;  // found under the lock
  };

  BlockPool& poolFor(const Request& request);
  PrivatePool& findOrCreatePool(MempoolId_t id);
  template <typename Visit>
  void forEachPool(Visit&& visit);

  Block* tryAllocate(Request& request);
  Block* retryAllocate(Request& request);
  Block* takeFromCache(const Request& request);
  Block* takeFromDevice(const Request& request);
  Block* handOut(Block* block, const Request& request);
  size_t limit() const;
  void splitIfWorthwhile(Block* block, size_t size);
  void recordEvents(Block* block);
  void finishEvent(Block* block);
  void makeFree(Block* block);
  Block* join(Block* lower, Block* upper);
  void processDeferred();
  void processEvents();
  void waitForEvents();
  bool isGarbageDue() const;
  void collectGarbage();
  void releaseSegments(BlockPool& pool);
  void releaseCachedSegments();
  void releaseSegment(Block* block);
  [[noreturn]] void throwOutOfMemory(const Request& request);
  void record(TraceEntry::Action action, size_t address, size_t size, const OpenRegStream& stream,
              MempoolId_t pool, std::shared_ptr<GatheredContext> context);
  template <typename Update>
  void updateStat(CachingAllocator::StatArray& stat, const BlockPool& pool, Update&& update);
  void changeReserved(const Block& block, bool is_added);
  void changeActive(const Block& block, bool is_active);
  void changeInactiveSplit(const Block& block, bool is_added);

  const DeviceIndex device_;
  std::mutex mutex_;  // guards everything below
  BlockPool small_{CachingAllocator::StatType::SMALL_POOL, nullptr};
  BlockPool large_{CachingAllocator::StatType::LARGE_POOL, nullptr};
  std::map<MempoolId_t, PrivatePool> private_pools_;
  std::vector<std::pair<PrivatePool*, StreamFilter>> allocating_to_;
  std::unordered_set<Block*> segments_;  // the first block of each; the others follow it
  std::unordered_map<OpenRegStream, std::deque<std::pair<OpenRegEvent, Block*>>> events_;
  std::vector<Block*> deferred_;  // freed while a stream they need an event of was capturing
  uint64_t search_count_ = 0;     // of the cache: the clock of garbage collection
  double memory_fraction_ = 1.0;
  DeviceStats stats_;
  MemoryHistory history_;
};

}  // namespace c10::openreg
