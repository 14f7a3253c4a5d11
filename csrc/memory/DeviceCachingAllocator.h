// The cache of one device's memory.
//
// Note [Stream-ordered reuse]
// A freed block may be given out again at once on the stream it was allocated for: whatever
// uses it next is enqueued after what used it before. Another stream that used it must have
// been named by record_stream; the block then waits for an event on that stream. So freeing
// never waits, and neither does allocating while the cache has a block.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/core/Event.h"
#include "csrc/core/Stream.h"
#include "csrc/memory/BlockPool.h"

namespace c10::openreg {

// Any thread may call any function at any time. Sizes are bytes.
class DeviceCachingAllocator {
 public:
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

  // Returns all segments without a block in use to the device.
  void emptyCache();

  CachingDeviceAllocator::DeviceStats stats();
  void resetAccumulatedStats();
  void resetPeakStats();

  // Bytes in use and bytes held, for the profiler's memory events.
  std::pair<size_t, size_t> usage();

  // Checks every invariant: blocks tile their segments, neighbours are merged, pools hold exactly
  // the free blocks, the statistics add up.
  bool isValid();

 private:
  using DeviceStats = CachingDeviceAllocator::DeviceStats;

  BlockPool& poolFor(size_t size);
  Block* takeFromCache(BlockPool& pool, size_t size, const OpenRegStream& stream);
  Block* takeFromDevice(BlockPool& pool, size_t size, const OpenRegStream& stream);
  void splitIfWorthwhile(Block* block, size_t size);
  void makeFree(Block* block);
  bool mergeWith(Block* block, Block* neighbour);
  void processEvents();
  void waitForEvents();
  size_t releaseCachedSegments();
  void releaseSegment(Block* block);
  [[noreturn]] void throwOutOfMemory(size_t size, std::unique_lock<std::mutex>& lock);
  template <typename Update>
  void updateStat(std::array<CachingAllocator::Stat, 3>& stat, const BlockPool& pool,
                  Update&& update);
  void changeActive(const Block& block, bool is_active);
  void changeInactiveSplit(const Block& block, bool is_added);

  const DeviceIndex device_;
  std::mutex mutex_;  // guards everything below
  BlockPool small_{CachingAllocator::StatType::SMALL_POOL};
  BlockPool large_{CachingAllocator::StatType::LARGE_POOL};
  std::unordered_set<Block*> blocks_;  // all, free or not
  std::unordered_map<OpenRegStream, std::deque<std::pair<OpenRegEvent, Block*>>> events_;
  DeviceStats stats_;
};

}  // namespace c10::openreg
