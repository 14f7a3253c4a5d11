#include "csrc/memory/BlockCache.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/llvmMathExtras.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "csrc/core/CaptureMode.h"
#include "csrc/memory/BlockObserver.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;
using CachingDeviceAllocator::SegmentInfo;

// Sizes are c10's, so that a program sees the same numbers as on other devices. The smallest block
// is an exception: it is a quarter of c10's, most of which would be unused for a tensor of few
// elements.
constinit size_t rounding = CachingAllocator::kMinBlockSize / 4;
constexpr size_t kSmallSize = CachingAllocator::kSmallSize;
constexpr size_t kSmallSegment = CachingAllocator::kSmallBuffer;
constexpr size_t kMinLargeAlloc = CachingAllocator::kMinLargeAlloc;
constexpr size_t kRoundLarge = CachingAllocator::kRoundLarge;

constexpr MempoolId_t kDefaultPools = {0, 0};

// Blocks of the small pool are never oversize, whatever the settings are.
bool isOversize(const Block& block) {
  return !block.pool->isSmall() && block.size >= AcceleratorAllocatorConfig::max_split_size();
}

// A block that is too large to be split may only serve requests of about its own size.
bool isTooLarge(const Block& block, const BlockRequest& request) {
  if (!isOversize(block)) {
    return false;
  }
  return request.rounded < AcceleratorAllocatorConfig::max_split_size() ||
         block.size >= request.rounded + AcceleratorAllocatorConfig::max_non_split_rounding_size();
}

}  // namespace

size_t segmentSize(size_t size) {
  if (size <= kSmallSize) {
    return kSmallSegment;
  }
  if (size < kMinLargeAlloc) {
    return AcceleratorAllocatorConfig::large_segment_size();
  }
  return roundUp(size, kRoundLarge);
}

void setSmallestBlock(size_t size) noexcept { rounding = size; }

size_t roundedBlockSize(size_t size) {
  if (size <= rounding) {
    return rounding;
  }
  const size_t divisions = AcceleratorAllocatorConfig::roundup_power2_divisions(size);
  if (divisions > 1 && size > rounding * divisions) {
    const size_t power = c10::llvm::PowerOf2Floor(size);
    return roundUp(size, std::max(power / divisions, rounding));
  }
  return roundUp(size, rounding);
}

// --- Allocation

BlockPool& BlockCache::poolFor(const BlockRequest& request) {
  const bool is_small = request.rounded <= kSmallSize;
  for (auto redirection = allocating_to_.rbegin(); redirection != allocating_to_.rend();
       ++redirection) {
    const auto& [pool, filter] = *redirection;
    if (filter(request.stream)) {
      return is_small ? pool->small : pool->large;
    }
  }
  return is_small ? small_ : large_;
}

Block* BlockCache::reuse(const BlockRequest& request) {
  ++search_count_;
  const FreeBlocks& free_blocks = poolFor(request).free_blocks;
  const std::optional<FreeBlocks::Position> place = findFit(free_blocks, request);
  if (!place.has_value() || isTooLarge(***place, request)) {
    return nullptr;
  }
  return handOut(*place, request);
}

Block* BlockCache::reuseOfPools(const BlockRequest& request) {
  if (poolFor(request).owner != nullptr) {
    return nullptr;
  }
  for (auto& [id, pool] : private_pools_) {
    if (!pool.options.serves_others) {
      continue;
    }
    const bool is_small = request.rounded <= kSmallSize;
    const FreeBlocks& free_blocks = (is_small ? pool.small : pool.large).free_blocks;
    const auto place = findFit(free_blocks, request);
    if (place.has_value() && !isTooLarge(***place, request)) {
      return handOut(*place, request);
    }
  }
  return nullptr;
}

// The best fit among free blocks for a request. Of blocks of expandable segments, what counts is
// the size to which they can grow; without the setting, they serve no request.
std::optional<FreeBlocks::Position> BlockCache::findFit(const FreeBlocks& free_blocks,
                                                        const BlockRequest& request) {
  const auto smallest = free_blocks.bestFit(request.stream, request.rounded);
  if (!smallest.has_value() || C10_LIKELY(!(**smallest)->is_expandable)) {
    return smallest;
  }
  FreeBlocks::Position place = *smallest;
  const auto isEnd = [&](FreeBlocks::Position at) {
    return at == free_blocks.end() || *(*at)->stream != request.stream;
  };
  if (!areSegmentsExpandable()) {
    while (!isEnd(place) && (*place)->is_expandable) {
      ++place;
    }
    return isEnd(place) ? std::nullopt : std::optional(place);
  }
  const auto sizeToGrowTo = [](const Block& block) {
    const bool can_grow = block.next != nullptr && block.next->is_unmapped;
    return block.size + (can_grow ? block.next->size : 0);
  };
  for (FreeBlocks::Position next = std::next(place);
       (*place)->is_expandable && !isEnd(next) && sizeToGrowTo(**next) < sizeToGrowTo(**place);
       ++next) {
    place = next;
  }
  return place;
}

Block* BlockCache::reserve(const BlockRequest& request) {
  const size_t size = segmentSize(request.rounded);
  const bool is_expandable = areSegmentsExpandable();
  // A segment may grow by less than that, and the device knows how much it has.
  const bool is_limited = !is_expandable || memory_fraction_ < 1;
  if (is_limited && statistics_.reservedBytes() + size > limit()) {
    return nullptr;
  }
  if (is_expandable) {
    BlockPool& pool = poolFor(request);
    Block* room = expandable_.findRoom(pool, request.stream, request.rounded);
    if (room == nullptr) {
      room = reserveAddresses(pool, request);
    }
    if (room != nullptr) {
      return growSegment(room, request);
    }
  }
  return reserveSegment(request);
}

// Returns the unmapped block of a new segment, null if there are no addresses for it.
Block* BlockCache::reserveAddresses(BlockPool& pool, const BlockRequest& request) {
  orDeviceProp properties{};
  OPENREG_CHECK(orGetDeviceProperties(&properties, device_));
  auto block = std::make_unique<Block>();
  block->device = device_;
  block->stream = keep(request.stream);
  block->pool = &pool;
  block->is_expandable = true;
  block->is_unmapped = true;
  const DeviceIndex previous = exchange_device(device_);
  const bool is_reserved = expandable_.create(pool, properties.totalGlobalMem, *block);
  exchange_device(previous);
  if (!is_reserved || block->size < request.rounded) {
    if (is_reserved) {
      expandable_.release(*block);
    }
    return nullptr;
  }
  if (pool.owner != nullptr) {
    ++pool.owner->segment_count;
  }
  segments_.insert(block.get());
  expandable_.insert(block.get());
  return block.release();
}

// Allocates a block that begins where `room` does, which may be free or unmapped.
Block* BlockCache::growSegment(Block* room, const BlockRequest& request) {
  if (room->is_unmapped) {
    room = mapBlock(room, std::min(room->size, request.rounded), request);
  }
  while (room != nullptr && room->size < request.rounded) {
    const size_t missing = request.rounded - room->size;
    room = mapBlock(room->next, std::min(room->next->size, missing), request);
  }
  return room == nullptr ? nullptr : handOut(room->pool->free_blocks.find(room), request);
}

// Gives memory to the first `size` bytes of an unmapped block, in whole pages. Returns the free
// block that has them, null if the device has no room for them.
Block* BlockCache::mapBlock(Block* block, size_t size, const BlockRequest& request) {
  size = expandable_.roundUpToPages(*block, size);
  {
    const RelaxedIfCapturing relaxed(device_);
    const orError_t error = orMemMap(block->address, size);
    if (error == orErrorMemoryAllocation) {
      std::ignore = orGetLastError();
      return nullptr;
    }
    OPENREG_CHECK_RESULT(error, "orMemMap");
  }
  expandable_.erase(block);
  if (size < block->size) {
    Block* rest = split(block, size);
    rest->is_unmapped = true;
    expandable_.insert(rest);
  }
  block->is_unmapped = false;
  if (BlockObserver* observer = blockObserver(); C10_UNLIKELY(observer != nullptr)) {
    observer->segmentReserved(*block);
  }
  if (request.context != nullptr && block->previous == nullptr) {
    block->findOrCreateExtras().segment_context = request.context;
  }
  statistics_.addMapped(*block);
  record(TraceEntry::SEGMENT_MAP, *block, request.context);
  return addFree(block);
}

Block* BlockCache::reserveSegment(const BlockRequest& request) {
  const size_t size = segmentSize(request.rounded);
  void* address = nullptr;
  const DeviceIndex previous = exchange_device(device_);
  const RelaxedIfCapturing relaxed(device_);
  const orError_t error = orMalloc(&address, size);
  exchange_device(previous);
  if (error == orErrorMemoryAllocation) {
    // The caller retries or reports the error, so it must not stay this thread's last error.
    std::ignore = orGetLastError();
    return nullptr;
  }
  OPENREG_CHECK_RESULT(error, "orMalloc");
  auto* block = new Block();
  block->device = device_;
  block->stream = keep(request.stream);
  block->size = size;
  block->pool = &poolFor(request);
  block->address = static_cast<std::byte*>(address);
  block->is_oversize_segment = size >= AcceleratorAllocatorConfig::max_split_size();
  if (BlockObserver* observer = blockObserver(); C10_UNLIKELY(observer != nullptr)) {
    observer->segmentReserved(*block);
  }
  if (request.context != nullptr) {
    block->findOrCreateExtras().segment_context = request.context;
  }
  segments_.insert(block);
  if (PrivatePool* owner = block->pool->owner) {
    ++owner->segment_count;
  }
  statistics_.addSegment(*block);
  record(TraceEntry::SEGMENT_ALLOC, *block, request.context);
  FreeBlocks& free_blocks = block->pool->free_blocks;
  free_blocks.insert(block);
  return handOut(free_blocks.find(block), request);
}

// A pointer to the stream that is valid as long as the cache.
const OpenRegStream* BlockCache::keep(const OpenRegStream& stream) {
  return &*streams_.insert(stream).first;
}

// Removes a block from its pool for the request.
Block* BlockCache::handOut(FreeBlocks::Position place, const BlockRequest& request) {
  Block* block = *place;
  FreeBlocks& free_blocks = block->pool->free_blocks;
  statistics_.removeInactiveSplit(*block);
  if (Block* rest = splitIfWorthwhile(block, request.rounded)) {
    free_blocks.replace(place, rest);
    statistics_.addInactiveSplit(*rest);
  } else {
    free_blocks.erase(place);
  }
  block->is_allocated = true;
  block->requested_size = request.size;
  block->is_oversize_allocation = isOversize(*block);
  if (request.context != nullptr) {
    block->findOrCreateExtras().allocation_context = request.context;
  }
  if (BlockObserver* observer = blockObserver(); C10_UNLIKELY(observer != nullptr)) {
    observer->blockAllocated(*block);
  }
  statistics_.addAllocation(*block);
  record(TraceEntry::ALLOC, *block, request.context);
  return block;
}

// Returns the remainder, or null if the block was not split.
Block* BlockCache::splitIfWorthwhile(Block* block, size_t size) {
  if (const PrivatePool* owner = block->pool->owner; owner != nullptr && !owner->options.is_split) {
    return nullptr;
  }
  const size_t remaining = block->size - size;
  const bool is_worthwhile =
      block->pool->isSmall() || areSegmentsExpandable()
          ? remaining >= rounding
          : size < AcceleratorAllocatorConfig::max_split_size() && remaining > kSmallSize;
  if (!is_worthwhile) {
    return nullptr;
  }
  return split(block, size);
}

// Returns the new block, which begins `size` bytes after the start of the other.
Block* BlockCache::split(Block* block, size_t size) {
  Block* rest = spare_ != nullptr ? spare_.release() : new Block();
  rest->device = device_;
  rest->stream = block->stream;
  rest->size = block->size - size;
  rest->pool = block->pool;
  rest->address = block->address + size;
  rest->is_oversize_segment = block->is_oversize_segment;
  rest->is_expandable = block->is_expandable;
  rest->freed_at = search_count_;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) {
    rest->next->previous = rest;
  }
  block->next = rest;
  block->size = size;
  return rest;
}

// --- Free

// Afterwards, the block has no owner.
void BlockCache::endAllocation(Block* block, const std::shared_ptr<GatheredContext>& context) {
  record(TraceEntry::FREE_REQUESTED, *block, context);
  statistics_.removeAllocation(*block);
  block->is_allocated = false;
}

bool BlockCache::takeBack(Block* block, const std::shared_ptr<GatheredContext>& context) {
  endAllocation(block, context);
  if (block->hasOtherStreams()) {
    return false;
  }
  makeFree(block);
  return true;
}

// See Note [Blocks held back]: until then, the block has one pending use.
void BlockCache::holdBack(Block* block, const std::shared_ptr<GatheredContext>& context) {
  endAllocation(block, context);
  block->pending_uses = 1;
  makeAllFree(blockObserver()->holdBack(block));
}

void BlockCache::takeHeldBack() {
  if (BlockObserver* observer = blockObserver()) {
    makeAllFree(observer->takeHeldBack(device_));
  }
}

void BlockCache::makeAllFree(const std::vector<Block*>& blocks) {
  for (Block* block : blocks) {
    block->pending_uses = 0;
    makeFree(block);
  }
}

void BlockCache::makeFree(Block* block) {
  if (BlockObserver* observer = blockObserver(); C10_UNLIKELY(observer != nullptr)) {
    observer->blockFreed(*block);
  }
  record(TraceEntry::FREE_COMPLETED, *block, block->allocationContext());
  statistics_.removeActive(*block);
  block->requested_size = 0;
  if (std::shared_ptr<GatheredContext> segment_context = block->segmentContext()) {
    block->extras = std::make_unique<BlockExtras>();
    block->extras->segment_context = std::move(segment_context);
  } else {
    block->extras.reset();
  }
  addFree(block);
}

// Adds a block to its pool, merged with its free neighbors. Returns the block that it became.
Block* BlockCache::addFree(Block* block) {
  FreeBlocks& free_blocks = block->pool->free_blocks;
  std::optional<FreeBlocks::Position> place = placeToJoin(block->next);
  if (const auto lower = placeToJoin(block->previous)) {
    if (place.has_value()) {
      free_blocks.erase(*place);
      join(block, block->next);
    }
    place = lower;
    block = join(block->previous, block);
  } else if (place.has_value()) {
    join(block, block->next);
  }
  block->freed_at = search_count_;
  place.has_value() ? free_blocks.replace(*place, block) : free_blocks.insert(block);
  statistics_.addInactiveSplit(*block);
  return block;
}

// The position of a neighbor that can be merged, if it is free.
std::optional<FreeBlocks::Position> BlockCache::placeToJoin(Block* neighbor) {
  if (neighbor == nullptr || !neighbor->isFree()) {
    return std::nullopt;
  }
  statistics_.removeInactiveSplit(*neighbor);
  return neighbor->pool->free_blocks.find(neighbor);
}

// Merges two neighbors. Deletes the upper one, so that a segment's first block is stable.
Block* BlockCache::join(Block* lower, Block* upper) {
  lower->size += upper->size;
  lower->next = upper->next;
  if (lower->next != nullptr) {
    lower->next->previous = lower;
  }
  *upper = Block();
  spare_.reset(upper);
  return lower;
}

// --- Release of segments

std::vector<BlockPool*> BlockCache::allPools() {
  std::vector<BlockPool*> pools{&small_, &large_};
  for (auto& [id, pool] : private_pools_) {
    pools.insert(pools.end(), {&pool.small, &pool.large});
  }
  return pools;
}

void BlockCache::detachFreeSegments(BlockPool& pool,
                                    const std::shared_ptr<GatheredContext>& context,
                                    std::vector<Block*>& segments) {
  std::vector<Block*> expandable;
  for (auto it = pool.free_blocks.begin(); it != pool.free_blocks.end();) {
    Block* block = *it++;
    if (block->is_expandable) {
      expandable.push_back(block);
    } else if (!block->isSplit()) {
      detachSegment(block, context, segments);
    }
  }
  for (Block* block : expandable) {
    detachPages(block, context, segments);
  }
}

// Detaches the whole pages of a free block; what is before and after them stays free.
void BlockCache::detachPages(Block* block, const std::shared_ptr<GatheredContext>& context,
                             std::vector<Block*>& blocks) {
  const auto pages = expandable_.pagesIn(*block);
  if (!pages.has_value()) {
    return;
  }
  FreeBlocks& free_blocks = block->pool->free_blocks;
  free_blocks.erase(free_blocks.find(block));
  if (pages->offset > 0) {
    Block* const before = block;
    block = split(before, pages->offset);
    free_blocks.insert(before);
  }
  if (pages->size < block->size) {
    free_blocks.insert(split(block, pages->size));
  }
  block->is_unmapped = true;
  block->pending_uses = 1;  // until finishUnmapping()
  if (BlockObserver* observer = blockObserver(); C10_UNLIKELY(observer != nullptr)) {
    observer->segmentReleased(*block);
  }
  statistics_.removeMapped(*block);
  record(TraceEntry::SEGMENT_UNMAP, *block, context != nullptr ? context : block->segmentContext());
  blocks.push_back(block);
}

void BlockCache::finishUnmapping(Block* block) {
  block->pending_uses = 0;
  const auto isUnmapped = [](const Block* neighbor) {
    return neighbor != nullptr && neighbor->is_unmapped && neighbor->pending_uses == 0;
  };
  if (Block* const upper = block->next; isUnmapped(upper)) {
    expandable_.erase(upper);
    join(block, upper);
  }
  if (Block* const lower = block->previous; isUnmapped(lower)) {
    expandable_.erase(lower);
    block = join(lower, block);
  }
  if (block->isSplit()) {
    expandable_.insert(block);
    return;
  }
  segments_.erase(block);
  PrivatePool* const owner = block->pool->owner;
  expandable_.release(*block);
  delete block;
  if (owner != nullptr && --owner->segment_count == 0 && owner->use_count == 0) {
    private_pools_.erase(MempoolId_t(owner->id));
  }
}

std::vector<Block*> BlockCache::detachUnused(const std::shared_ptr<GatheredContext>& context) {
  std::vector<Block*> segments;
  for (BlockPool* pool : allPools()) {
    if (pool->owner == nullptr || pool->owner->use_count == 0) {
      detachFreeSegments(*pool, context, segments);
    }
  }
  std::erase_if(private_pools_, [](const auto& entry) {
    return entry.second.use_count == 0 && entry.second.segment_count == 0;
  });
  return segments;
}

std::vector<Block*> BlockCache::detachUnused(MempoolId_t pool,
                                             const std::shared_ptr<GatheredContext>& context) {
  if (pool == kDefaultPools) {
    return detachUnused(context);
  }
  std::vector<Block*> segments;
  if (const auto found = private_pools_.find(pool); found != private_pools_.end()) {
    detachFreeSegments(found->second.small, context, segments);
    detachFreeSegments(found->second.large, context, segments);
  }
  return segments;
}

// `block` is free and spans its segment. Afterwards, the cache has no reference to it.
void BlockCache::detachSegment(Block* block, const std::shared_ptr<GatheredContext>& context,
                               std::vector<Block*>& segments) {
  segments.push_back(block);
  FreeBlocks& free_blocks = block->pool->free_blocks;
  free_blocks.erase(free_blocks.find(block));
  segments_.erase(block);
  if (BlockObserver* observer = blockObserver(); C10_UNLIKELY(observer != nullptr)) {
    observer->segmentReleased(*block);
  }
  if (PrivatePool* owner = block->pool->owner) {
    --owner->segment_count;
  }
  statistics_.removeSegment(*block);
  record(TraceEntry::SEGMENT_FREE, *block, context != nullptr ? context : block->segmentContext());
}

bool BlockCache::isGarbageDue() const {
  const double threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  return threshold > 0 && static_cast<double>(statistics_.reservedBytes()) >
                              threshold * static_cast<double>(limit());
}

// The age of a segment is the number of searches since it was last used. Releases those of at least
// average age, as long as there are any.
std::vector<Block*> BlockCache::detachGarbage() {
  std::vector<Block*> segments;
  while (isGarbageDue()) {
    std::vector<Block*> candidates;
    uint64_t total_age = 0;
    for (BlockPool* pool : {&small_, &large_}) {
      for (Block* block : pool->free_blocks) {
        if (!block->isSplit() && !block->is_expandable) {
          candidates.push_back(block);
          total_age += search_count_ - block->freed_at;
        }
      }
    }
    if (candidates.empty()) {
      break;
    }
    const uint64_t average_age = total_age / candidates.size();
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Block* a, const Block* b) { return a->freed_at < b->freed_at; });
    for (Block* block : candidates) {
      if (!isGarbageDue() || search_count_ - block->freed_at < average_age) {
        break;
      }
      detachSegment(block, nullptr, segments);
    }
  }
  return segments;
}

// --- Private pools

PrivatePool& BlockCache::findOrCreatePool(MempoolId_t id) {
  TORCH_CHECK(id != kDefaultPools, "a memory pool's id must not be (0, 0)");
  return private_pools_.try_emplace(id, id).first->second;
}

void BlockCache::createPool(MempoolId_t id, PoolOptions options) {
  PrivatePool& pool = findOrCreatePool(id);
  ++pool.use_count;
  pool.options = options;
}

void BlockCache::releasePool(MempoolId_t id) {
  const auto found = private_pools_.find(id);
  TORCH_CHECK(found != private_pools_.end() && found->second.use_count > 0, "memory pool (",
              id.first, ", ", id.second, ") of device ", static_cast<int>(device_),
              " is not in use, so it cannot be released");
  --found->second.use_count;
}

int BlockCache::poolUseCount(MempoolId_t id) const {
  const auto found = private_pools_.find(id);
  return found == private_pools_.end() ? 0 : found->second.use_count;
}

void BlockCache::beginAllocateToPool(MempoolId_t id, StreamFilter filter) {
  PrivatePool& pool = findOrCreatePool(id);
  for (const auto& [other, unused] : allocating_to_) {
    TORCH_CHECK(other != &pool, "memory pool (", id.first, ", ", id.second,
                ") is already being allocated to");
  }
  ++pool.use_count;
  allocating_to_.emplace_back(&pool, std::move(filter));
}

void BlockCache::endAllocateToPool(MempoolId_t id) {
  const size_t erased = std::erase_if(
      allocating_to_, [&](const auto& redirection) { return redirection.first->id == id; });
  TORCH_CHECK(erased == 1, "memory pool (", id.first, ", ", id.second,
              ") is not being allocated to");
}

// --- Limits, state and history

size_t BlockCache::limit() const {
  orDeviceProp properties{};
  OPENREG_CHECK(orGetDeviceProperties(&properties, device_));
  return static_cast<size_t>(memory_fraction_ * static_cast<double>(properties.totalGlobalMem));
}

void BlockCache::record(TraceEntry::Action action, size_t address, size_t size,
                        const OpenRegStream& stream, MempoolId_t pool,
                        std::shared_ptr<GatheredContext> context) {
  history_.record(action, device_, address, size, stream.id(), pool, std::move(context));
}

void BlockCache::recordOutOfMemory(const BlockRequest& request, size_t free_size) {
  statistics_.countOutOfMemory();
  record(TraceEntry::OOM, free_size, request.size, request.stream, poolFor(request).id(),
         request.context);
}

std::vector<SegmentInfo> BlockCache::snapshot(MempoolId_t pool) {
  record(TraceEntry::SNAPSHOT, 0, statistics_.reservedBytes(), getDefaultOpenRegStream(device_),
         kDefaultPools, nullptr);
  return describeSegments(segments_, pool, search_count_);
}

bool BlockCache::isValid() {
  const std::optional<SegmentTotals> totals = totalsOf(segments_);
  size_t free_count = 0;
  bool is_ordered = true;
  for (const BlockPool* pool : allPools()) {
    free_count += pool->free_blocks.size();
    is_ordered = is_ordered && pool->free_blocks.isOrdered();
  }
  return is_ordered && totals.has_value() && totals->free_count == free_count &&
         totals->reserved == statistics_.reservedBytes() &&
         totals->allocated == statistics_.allocatedBytes();
}

void BlockCache::forEachBlock(const std::function<void(const Block&)>& function) const {
  for (const Block* first : segments_) {
    for (const Block* block = first; block != nullptr; block = block->next) {
      function(*block);
    }
  }
}

}  // namespace c10::openreg
