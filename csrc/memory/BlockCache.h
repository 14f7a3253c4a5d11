// One device's memory: its segments and blocks, who has them, and which is given out next.
//
// Not thread-safe, and waits for nothing. DeviceCachingAllocator has the lock for it, knows when
// other streams are done with a block, and waits.
//
// Note [Memory of graphs]
// A graph's kernels run again at the addresses they were captured with. So what a capture
// allocates comes from a private pool, which gives memory to nobody else while the graph lives.
// Within the pool, blocks are reused as elsewhere: in the order of the stream, which is the order
// of every replay. An event recorded on a capturing stream would be part of the graph and say
// nothing to the host, so a block that needs one waits until that stream's capture has ended.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "csrc/memory/BlockPool.h"
#include "csrc/memory/MemoryHistory.h"
#include "csrc/memory/MemoryPoison.h"
#include "csrc/memory/MemorySnapshot.h"
#include "csrc/memory/MemoryStatistics.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// The size of the block that serves an allocation of so many bytes.
size_t roundedBlockSize(size_t size);

struct BlockRequest {
  size_t size;     // as asked for
  size_t rounded;  // of the block
  OpenRegStream stream;
  std::shared_ptr<GatheredContext> context;
};

class BlockCache {
 public:
  using StreamFilter = std::function<bool(const OpenRegStream&)>;

  explicit BlockCache(DeviceIndex device) : device_(device) {}

  // --- Blocks

  // Gives out a free block of the request's pool and stream. Null if none fits.
  Block* reuse(const BlockRequest& request);

  // Gives out a free block of a private pool that serves others before memory runs out. Null if
  // none fits.
  Block* reuseOfPools(const BlockRequest& request);

  // Gives out a block of a new segment. Null if the device, or the limit, has no room for it.
  Block* reserve(const BlockRequest& request);

  // Takes a block back from whom it was given out to. If no other stream used it, it is free, and
  // the result true. Else makeFree() has to follow, when those are done with it.
  bool takeBack(Block* block, const std::shared_ptr<GatheredContext>& context);

  // Lets a block be reused.
  void makeFree(Block* block);

  // --- Quarantine; see Note [Quarantine]

  // Prepares a block that is given out for the fill that comes before quarantine().
  void expectFill(Block* block);

  // Takes a block back, without makeFree(). What has been there for the longest becomes free.
  void quarantine(Block* block, const std::shared_ptr<GatheredContext>& context);

  // Lets all of it be reused.
  void endQuarantine() { shrinkQuarantine(0); }

  // --- Segments. Those that are detached are in no book any more: the caller frees their memory
  // and deletes their only blocks.

  // Detaches all segments without a block in use: those of the default pools, and of private pools
  // that nobody uses any more. Given the id of a private pool, those of that one instead. History
  // has the context, or if it is null that of the segment's allocation.
  std::vector<Block*> detachUnused(const std::shared_ptr<GatheredContext>& context);
  std::vector<Block*> detachUnused(MempoolId_t pool,
                                   const std::shared_ptr<GatheredContext>& context);

  // Whether more is reserved than the setting garbage_collection_threshold allows.
  bool isGarbageDue() const;

  // Detaches segments that have not been asked for in a long time, oldest first, until it is not.
  std::vector<Block*> detachGarbage();

  // --- Private pools; see Note [Memory of graphs] and DeviceCachingAllocator

  void retainPool(MempoolId_t id);
  void setPoolOptions(MempoolId_t id, PoolOptions options);
  void releasePool(MempoolId_t id);
  int poolUseCount(MempoolId_t id) const;
  void beginAllocateToPool(MempoolId_t id, StreamFilter filter);
  void endAllocateToPool(MempoolId_t id);

  // --- Limits, state and history

  // Limits what is reserved to a share of the capacity, 0 to 1.
  void setMemoryFraction(double fraction) { memory_fraction_ = fraction; }
  double memoryFraction() const { return memory_fraction_; }

  // Bytes that may be reserved.
  size_t limit() const;

  MemoryStatistics& statistics() { return statistics_; }
  MemoryHistory& history() { return history_; }

  // Counts a request that could not be served, and puts it down in the history.
  void recordOutOfMemory(const BlockRequest& request, size_t free_size);

  std::vector<CachingDeviceAllocator::SegmentInfo> snapshot(MempoolId_t pool);
  bool isValid();

  // As DeviceCachingAllocator's.
  uint32_t beginCheck() { return ++check_count_; }
  std::vector<Corruption> findCorruptions(uint32_t check);

 private:
  using TraceEntry = CachingDeviceAllocator::TraceEntry;

  BlockPool& poolFor(const BlockRequest& request);
  PrivatePool& findOrCreatePool(MempoolId_t id);
  std::vector<BlockPool*> allPools();
  const OpenRegStream* keep(const OpenRegStream& stream);

  void endAllocation(Block* block, const std::shared_ptr<GatheredContext>& context);
  Block* handOut(FreeBlocks::Place place, const BlockRequest& request);
  void shrinkQuarantine(size_t size);
  Block* splitIfWorthwhile(Block* block, size_t size);
  std::optional<FreeBlocks::Place> placeToJoin(Block* neighbor);
  Block* join(Block* lower, Block* upper);

  void detachFreeSegments(BlockPool& pool, const std::shared_ptr<GatheredContext>& context,
                          std::vector<Block*>& segments);
  void detachSegment(Block* block, const std::shared_ptr<GatheredContext>& context,
                     std::vector<Block*>& segments);

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
  BlockPool small_{CachingAllocator::StatType::SMALL_POOL, nullptr};
  BlockPool large_{CachingAllocator::StatType::LARGE_POOL, nullptr};
  std::map<MempoolId_t, PrivatePool> private_pools_;
  std::vector<std::pair<PrivatePool*, StreamFilter>> allocating_to_;
  Segments segments_;
  std::unique_ptr<Block> spare_;  // of the last join, for the next cut: a loop needs no heap
  std::unordered_set<OpenRegStream> streams_;  // that blocks belong to; never shrinks
  uint64_t search_count_ = 0;                  // of the cache: the clock of garbage collection
  uint32_t check_count_ = 0;                   // of beginCheck()
  PoisonedRanges poisoned_;
  std::deque<Block*> quarantine_;  // the oldest first
  size_t quarantined_size_ = 0;
  double memory_fraction_ = 1.0;
  MemoryStatistics statistics_;
  MemoryHistory history_;
};

}  // namespace c10::openreg
