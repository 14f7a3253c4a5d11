// One device's memory: segments, blocks and their owners, and the selection of blocks for
// allocations.
//
// Not thread-safe, and never waits. DeviceCachingAllocator has the lock, tracks the use of blocks
// by other streams, and waits.
//
// Note [Memory of graphs]
// A graph's kernels run again at the addresses with which they were captured. So memory that is
// allocated during a capture comes from a private pool, which is used for nothing else while the
// graph exists. Within the pool, blocks are reused as usual: in the order of the stream, which is
// the same in every replay. An event that is recorded on a capturing stream would become part of
// the graph, and the host could not query it, so a block that needs an event waits until that
// stream's capture has ended.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "csrc/memory/BlockPool.h"
#include "csrc/memory/ExpandableSegments.h"
#include "csrc/memory/MemoryHistory.h"
#include "csrc/memory/MemorySnapshot.h"
#include "csrc/memory/MemoryStatistics.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// The size of the block for an allocation of `size` bytes.
size_t roundedBlockSize(size_t size);

// Sets the size of the smallest block, of which others are multiples: for programs that rely on the
// sizes of another allocator. Before the first allocation.
void setSmallestBlock(size_t size) noexcept;

// The size of the segment that is reserved for a block of a rounded size.
size_t segmentSize(size_t size);

struct BlockRequest {
  size_t size;     // as requested
  size_t rounded;  // of the block
  OpenRegStream stream;
  std::shared_ptr<GatheredContext> context;
};

class BlockCache {
 public:
  using StreamFilter = std::function<bool(const OpenRegStream&)>;

  explicit BlockCache(DeviceIndex device) : device_(device) {}

  // --- Blocks

  // Allocates a free block of the request's pool and stream. Null if none fits.
  Block* reuse(const BlockRequest& request);

  // Allocates a free block of a private pool that may serve other requests when memory runs out.
  // Null if none fits.
  Block* reuseOfPools(const BlockRequest& request);

  // Allocates a block of a new segment, or of one that grows, if segments are expandable. Null if
  // the device or the limit has no room for it.
  Block* reserve(const BlockRequest& request);

  // Ends the allocation of a block. Returns true, and makes it free, if no other stream used it.
  // Otherwise the caller must call makeFree() when those streams have finished.
  bool takeBack(Block* block, const std::shared_ptr<GatheredContext>& context);

  // Lets a block be reused.
  void makeFree(Block* block);

  // Ends the allocation of a block that the observer holds back. Blocks that it returns become
  // free.
  void holdBack(Block* block, const std::shared_ptr<GatheredContext>& context);

  // Makes all blocks free that the observer holds back.
  void takeHeldBack();

  // --- Segments. The cache drops detached segments: the caller frees their memory and deletes
  // their only blocks. Of expandable segments it detaches blocks: the caller unmaps their memory
  // and calls finishUnmapping().

  // Detaches all segments without a block in use: those of the default pools, and of private pools
  // without users; given the id of a private pool, only those of that pool. The history entry gets
  // the context, or that of the segment's allocation if it is null.
  std::vector<Block*> detachUnused(const std::shared_ptr<GatheredContext>& context);
  std::vector<Block*> detachUnused(MempoolId_t pool,
                                   const std::shared_ptr<GatheredContext>& context);

  // Keeps the addresses of a detached block of an expandable segment, or ends their reservation if
  // the segment has no memory left. Deletes the block, or owns it again.
  void finishUnmapping(Block* block);

  // Whether more is reserved than the setting garbage_collection_threshold allows.
  bool isGarbageDue() const;

  // Detaches segments that have not been used for a long time, oldest first, until it is not due.
  std::vector<Block*> detachGarbage();

  // --- Private pools; see Note [Memory of graphs]

  // Creates a pool with a user.
  void createPool(MempoolId_t id, PoolOptions options);

  // Removes a user. The memory of a pool without users is released when the cache is emptied.
  void releasePool(MempoolId_t id);

  // The number of users of a pool; 0 if there is no such pool.
  int poolUseCount(MempoolId_t id) const;

  // Creates the pool if there is none, and adds a user. Until endAllocateToPool(), allocations on
  // streams that the filter accepts come from the pool. If several filters accept a stream, the
  // latest call takes precedence.
  // Errors: RuntimeError if the pool is already being allocated to.
  void beginAllocateToPool(MempoolId_t id, StreamFilter filter);

  // Ends the redirection, and keeps the user.
  // Errors: RuntimeError if the pool is not being allocated to.
  void endAllocateToPool(MempoolId_t id);

  // --- Limits, state and history

  // Limits the reserved memory to a fraction of the capacity, 0 to 1.
  void setMemoryFraction(double fraction) { memory_fraction_ = fraction; }
  double memoryFraction() const { return memory_fraction_; }

  // Bytes that may be reserved.
  size_t limit() const;

  MemoryStatistics& statistics() { return statistics_; }
  MemoryHistory& history() { return history_; }

  // Counts a request that failed, and adds it to the history.
  void recordOutOfMemory(const BlockRequest& request, size_t free_size);

  // All segments and their blocks, in address order; only those of one private pool unless the id
  // is {0, 0}.
  std::vector<CachingDeviceAllocator::SegmentInfo> snapshot(MempoolId_t pool);

  // Checks every invariant: blocks tile their segments, neighbors are merged, pools hold exactly
  // the free blocks, the statistics add up.
  bool isValid();

  // Calls a function with each block.
  void forEachBlock(const std::function<void(const Block&)>& function) const;

 private:
  using TraceEntry = CachingDeviceAllocator::TraceEntry;

  BlockPool& poolFor(const BlockRequest& request);
  PrivatePool& findOrCreatePool(MempoolId_t id);
  std::vector<BlockPool*> allPools();
  const OpenRegStream* keep(const OpenRegStream& stream);

  void endAllocation(Block* block, const std::shared_ptr<GatheredContext>& context);
  Block* handOut(FreeBlocks::Position place, const BlockRequest& request);
  void makeAllFree(const std::vector<Block*>& blocks);
  Block* splitIfWorthwhile(Block* block, size_t size);
  Block* split(Block* block, size_t size);
  Block* addFree(Block* block);
  std::optional<FreeBlocks::Position> placeToJoin(Block* neighbor);
  Block* join(Block* lower, Block* upper);

  static std::optional<FreeBlocks::Position> findFit(const FreeBlocks& free_blocks,
                                                     const BlockRequest& request);
  Block* reserveSegment(const BlockRequest& request);
  Block* reserveAddresses(BlockPool& pool, const BlockRequest& request);
  Block* growSegment(Block* room, const BlockRequest& request);
  Block* mapBlock(Block* block, size_t size, const BlockRequest& request);
  void detachPages(Block* block, const std::shared_ptr<GatheredContext>& context,
                   std::vector<Block*>& blocks);

  void detachFreeSegments(BlockPool& pool, const std::shared_ptr<GatheredContext>& context,
                          std::vector<Block*>& segments);
  void detachSegment(Block* block, const std::shared_ptr<GatheredContext>& context,
                     std::vector<Block*>& segments);

  void record(TraceEntry::Action action, size_t address, size_t size, const OpenRegStream& stream,
              MempoolId_t pool, std::shared_ptr<GatheredContext> context);
  // Segments are recorded with their size, allocations with the requested size, as for CUDA.
  void record(TraceEntry::Action action, const Block& block,
              const std::shared_ptr<GatheredContext>& context) {
    if (C10_UNLIKELY(isHistoryEnabled())) {
      const bool is_segment =
          action == TraceEntry::SEGMENT_ALLOC || action == TraceEntry::SEGMENT_FREE ||
          action == TraceEntry::SEGMENT_MAP || action == TraceEntry::SEGMENT_UNMAP;
      record(action, reinterpret_cast<size_t>(block.address),
             is_segment ? block.size : block.requested_size, *block.stream, block.pool->id(),
             context);
    }
  }

  const DeviceIndex device_;
  BlockPool small_{CachingAllocator::StatType::SMALL_POOL, nullptr};
  BlockPool large_{CachingAllocator::StatType::LARGE_POOL, nullptr};
  std::map<MempoolId_t, PrivatePool> private_pools_;
  std::vector<std::pair<PrivatePool*, StreamFilter>> allocating_to_;
  Segments segments_;
  ExpandableSegments expandable_;
  std::unique_ptr<Block> spare_;  // of the last merge, for the next split: saves heap calls
  std::unordered_set<OpenRegStream> streams_;  // that blocks belong to; never shrinks
  uint64_t search_count_ = 0;                  // of the cache: the clock of garbage collection
  double memory_fraction_ = 1.0;
  MemoryStatistics statistics_;
  MemoryHistory history_;
};

}  // namespace c10::openreg
