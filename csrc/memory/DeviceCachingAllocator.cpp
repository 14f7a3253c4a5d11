#include "csrc/memory/DeviceCachingAllocator.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/StringUtil.h>
#include <c10/util/llvmMathExtras.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/CaptureMode.h"
#include "csrc/memory/Allocator.h"

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;
using CachingAllocator::format_size;
using CachingDeviceAllocator::DeviceStats;
using CachingDeviceAllocator::RecordContext;
using CachingDeviceAllocator::SegmentInfo;

// Sizes are c10's, so that a program sees the numbers it knows from other devices.
constexpr size_t kRounding = CachingAllocator::kMinBlockSize;
static_assert(kRounding % OPENREG_MEMORY_ALIGNMENT == 0, "blocks keep the device's alignment");
constexpr size_t kSmallSize = CachingAllocator::kSmallSize;
constexpr size_t kSmallSegment = CachingAllocator::kSmallBuffer;
constexpr size_t kMinLargeAlloc = CachingAllocator::kMinLargeAlloc;
constexpr size_t kRoundLarge = CachingAllocator::kRoundLarge;

constexpr MempoolId_t kDefaultPools = {0, 0};

size_t roundUp(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

size_t roundedSize(size_t size) {
  const size_t divisions = AcceleratorAllocatorConfig::roundup_power2_divisions(size);
  if (divisions > 1 && size > kRounding * divisions) {
    const size_t power = c10::llvm::PowerOf2Floor(size);
    return roundUp(size, std::max(power / divisions, kRounding));
  }
  return roundUp(size, kRounding);
}

size_t segmentSize(size_t size) {
  if (size <= kSmallSize) {
    return kSmallSegment;
  }
  if (size < kMinLargeAlloc) {
    return AcceleratorAllocatorConfig::large_segment_size();
  }
  return roundUp(size, kRoundLarge);
}

}  // namespace

// --- Allocating

// docs: allocate
Block* DeviceCachingAllocator::allocate(size_t size, const OpenRegStream& stream) {
  // Stacks are gathered, memory is freed by others, and the device is waited for without the lock.
  Request request{size, roundedSize(size + guardSize()), stream,
                  gatherContext(RecordContext::STATE)};
  Block* block = tryAllocate(request);
  if (block == nullptr) {
    runFreeMemoryCallbacks();
    const BlockingRegion region;
    block = retryAllocate(request);
  }
  if (block == nullptr) {
    throwOutOfMemory(request);
  }
  if (isPoisonOn()) {
    try {
      fillOnStream(*block);
    } catch (const c10::Error&) {
      free(block);
      throw;
    }
  }
  return block;
}

// What nearly all calls come to: a block of the cache, or of a new segment. Waits for nothing.
Block* DeviceCachingAllocator::tryAllocate(Request& request) {
  recordPendingUses();
  const std::lock_guard<std::mutex> lock(mutex_);
  finishPendingUses();
  request.pool = &poolFor(request);
  Block* block = takeFromCache(request);
  if (block == nullptr && !isGarbageDue()) {
    block = takeFromDevice(request);
  }
  return block == nullptr ? nullptr : handOut(block, request);
}

// There is no free range, or too much is cached: gives memory back to the device, which waits.
Block* DeviceCachingAllocator::retryAllocate(Request& request) {
  const std::lock_guard<std::mutex> turn(waiting_mutex_);
  std::vector<Block*> segments;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    segments = detachGarbage();
  }
  giveBack(segments);
  if (Block* block = take(request)) {
    return block;
  }
  // Wait for what other streams still hold. If nothing of it fits, give everything unused back,
  // which also joins free ranges, and try once more.
  waitForOtherStreams();
  segments.clear();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    statistics_.countRetry();
    request.pool = &poolFor(request);
    if (Block* block = takeFromCache(request)) {
      return handOut(block, request);
    }
    detachCachedSegments(segments);
  }
  giveBack(segments);
  return take(request);
}
// docs: end

// Of the cache or the device, as they are.
Block* DeviceCachingAllocator::take(Request& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  finishPendingUses();
  request.pool = &poolFor(request);
  Block* block = takeFromCache(request);
  if (block == nullptr) {
    block = takeFromDevice(request);
  }
  return block == nullptr ? nullptr : handOut(block, request);
}

BlockPool& DeviceCachingAllocator::poolFor(const Request& request) {
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

Block* DeviceCachingAllocator::takeFromCache(const Request& request) {
  ++search_count_;
  Block* block = request.pool->free_blocks.bestFit(request.stream, request.rounded);
  if (block == nullptr) {
    return nullptr;
  }
  const size_t max_split_size = AcceleratorAllocatorConfig::max_split_size();
  // A block too large to split may only serve a request of about its own size.
  if ((request.rounded < max_split_size && block->size >= max_split_size) ||
      (request.rounded >= max_split_size &&
       block->size >=
           request.rounded + AcceleratorAllocatorConfig::max_non_split_rounding_size())) {
    return nullptr;
  }
  statistics_.removeInactiveSplit(*block);
  request.pool->free_blocks.erase(block);
  return block;
}

Block* DeviceCachingAllocator::takeFromDevice(const Request& request) {
  const size_t size = segmentSize(request.rounded);
  if (statistics_.reservedBytes() + size > limit()) {
    return nullptr;
  }
  void* address = nullptr;
  const DeviceIndex previous = exchangeDevice(device_);
  const RelaxedCaptureGuard relaxed;
  const orError_t error = orMalloc(&address, size);
  exchangeDevice(previous);
  if (error == orErrorMemoryAllocation) {
    // The caller tries again or reports; it is not this thread's last error.
    std::ignore = orGetLastError();
    return nullptr;
  }
  OPENREG_CHECK_RESULT(error, "orMalloc");
  auto* block = new Block();
  block->device = device_;
  block->stream = keep(request.stream);
  block->size = size;
  block->pool = request.pool;
  block->address = static_cast<std::byte*>(address);
  block->is_oversize_segment = size >= AcceleratorAllocatorConfig::max_split_size();
  if (request.context != nullptr) {
    block->findOrCreateExtras().segment_context = request.context;
  }
  segments_.insert(block);
  if (PrivatePool* owner = block->pool->owner) {
    ++owner->segment_count;
  }
  statistics_.addSegment(*block);
  record(TraceEntry::SEGMENT_ALLOC, *block, request.context);
  return block;
}

// The stream, for as long as the allocator lives.
const OpenRegStream* DeviceCachingAllocator::keep(const OpenRegStream& stream) {
  return &*streams_.insert(stream).first;
}

// Turns a free block that is in no pool into the request's.
Block* DeviceCachingAllocator::handOut(Block* block, const Request& request) {
  splitIfWorthwhile(block, request.rounded);
  block->is_allocated = true;
  block->requested_size = request.size;
  block->is_oversize_allocation = block->size >= AcceleratorAllocatorConfig::max_split_size();
  if (request.context != nullptr) {
    block->findOrCreateExtras().allocation_context = request.context;
  }
  if (isPoisonOn()) {
    poisoned_.forget(*block);
    block->findOrCreateExtras().is_filled = std::make_shared<std::atomic<bool>>(false);
  }
  statistics_.addAllocation(*block);
  record(TraceEntry::ALLOC, *block, request.context);
  return block;
}

void DeviceCachingAllocator::splitIfWorthwhile(Block* block, size_t size) {
  const size_t remaining = block->size - size;
  const bool is_worthwhile =
      block->pool->isSmall()
          ? remaining >= kRounding
          : size < AcceleratorAllocatorConfig::max_split_size() && remaining > kSmallSize;
  if (!is_worthwhile) {
    return;
  }
  auto* rest = new Block();
  rest->device = device_;
  rest->stream = block->stream;
  rest->size = remaining;
  rest->pool = block->pool;
  rest->address = block->address + size;
  rest->freed_before_check = block->freed_before_check;
  rest->is_oversize_segment = block->is_oversize_segment;
  rest->freed_at = search_count_;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) {
    rest->next->previous = rest;
  }
  block->next = rest;
  block->size = size;
  rest->pool->free_blocks.insert(rest);
  statistics_.addInactiveSplit(*rest);
}

// --- Freeing

void DeviceCachingAllocator::free(Block* block) noexcept {
  std::shared_ptr<GatheredContext> context;
  try {
    context = gatherContext(RecordContext::ALL);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "openreg: the stack of a free could not be recorded: %s\n", error.what());
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    record(TraceEntry::FREE_REQUESTED, *block, std::move(context));
    statistics_.removeAllocation(*block);
    block->is_allocated = false;
    block->requested_size = 0;
    if (block->extras == nullptr || block->extras->used_on.empty()) {
      makeFree(block);
      return;
    }
    pending_.add(block);
    has_unrecorded_uses_.store(true, std::memory_order_relaxed);
  }
  recordPendingUses();
}

// Records what other streams still have to do with freed blocks, unless they capture.
void DeviceCachingAllocator::recordPendingUses() noexcept {
  if (!has_unrecorded_uses_.load(std::memory_order_relaxed)) {
    return;
  }
  std::vector<Block*> blocks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks = pending_.takeRecordable();
    has_unrecorded_uses_.store(pending_.hasUnrecorded(), std::memory_order_relaxed);
  }
  for (Block* block : blocks) {
    PendingFrees::Uses uses = PendingFrees::recordUses(block);
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_.watch(block, std::move(uses));
  }
}

void DeviceCachingAllocator::finishPendingUses() {
  if (!pending_.isEmpty()) {
    for (Block* block : pending_.takeFinished()) {
      block->pending_uses = 0;
      makeFree(block);
    }
  }
}

void DeviceCachingAllocator::makeFree(Block* block) {
  record(TraceEntry::FREE_COMPLETED, *block, block->allocationContext());
  statistics_.removeActive(*block);
  if (std::shared_ptr<GatheredContext> segment_context = block->segmentContext()) {
    block->extras = std::make_unique<BlockExtras>();
    block->extras->segment_context = std::move(segment_context);
  } else {
    block->extras.reset();
  }
  block->freed_before_check = check_count_ + 1;
  const auto take_if_free = [this](Block* neighbour) {
    if (neighbour == nullptr || !neighbour->isFree()) {
      return false;
    }
    statistics_.removeInactiveSplit(*neighbour);
    neighbour->pool->free_blocks.erase(neighbour);
    return true;
  };
  if (take_if_free(block->next)) {
    join(block, block->next);
  }
  if (take_if_free(block->previous)) {
    block = join(block->previous, block);
  }
  block->freed_at = search_count_;
  block->pool->free_blocks.insert(block);
  statistics_.addInactiveSplit(*block);
}

// Joins two neighbours that are in no pool. The upper one is deleted, so that a segment's first
// block stays.
Block* DeviceCachingAllocator::join(Block* lower, Block* upper) {
  lower->size += upper->size;
  lower->freed_before_check = std::max(lower->freed_before_check, upper->freed_before_check);
  lower->next = upper->next;
  if (lower->next != nullptr) {
    lower->next->previous = lower;
  }
  delete upper;
  return lower;
}

std::vector<OpenRegStream> DeviceCachingAllocator::streamsOf(Block* block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<OpenRegStream> streams{*block->stream};
  if (block->extras != nullptr) {
    const auto& used_on = block->extras->used_on;
    streams.insert(streams.end(), used_on.begin(), used_on.end());
  }
  return streams;
}

void DeviceCachingAllocator::recordStream(Block* block, const OpenRegStream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stream != *block->stream) {
    block->findOrCreateExtras().used_on.insert(stream);
  }
}

// Waits for what keeps freed blocks from being reused.
void DeviceCachingAllocator::waitForOtherStreams() {
  recordPendingUses();
  std::vector<PendingFrees::EventRef> events;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    statistics_.countWait();
    events = pending_.latestEvents();
  }
  {
    const RelaxedCaptureGuard relaxed;
    for (const PendingFrees::EventRef& event : events) {
      event->synchronize();
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  finishPendingUses();
}

// --- Giving memory back

template <typename Visit>
void DeviceCachingAllocator::forEachPool(Visit&& visit) {
  visit(small_);
  visit(large_);
  for (auto& [id, pool] : private_pools_) {
    visit(pool.small);
    visit(pool.large);
  }
}

void DeviceCachingAllocator::detachFreeSegments(BlockPool& pool, std::vector<Block*>& segments) {
  for (auto it = pool.free_blocks.begin(); it != pool.free_blocks.end();) {
    Block* block = *it++;
    if (!block->isSplit()) {
      detachSegment(block, segments);
    }
  }
}

// Of the default pools, and of private pools that nobody uses any more.
void DeviceCachingAllocator::detachCachedSegments(std::vector<Block*>& segments) {
  forEachPool([&](BlockPool& pool) {
    if (pool.owner == nullptr || pool.owner->use_count == 0) {
      detachFreeSegments(pool, segments);
    }
  });
  std::erase_if(private_pools_, [](const auto& entry) {
    return entry.second.use_count == 0 && entry.second.segment_count == 0;
  });
}

// `block` is free and all of its segment. From here on it is in no book; giveBack() must follow.
void DeviceCachingAllocator::detachSegment(Block* block, std::vector<Block*>& segments) {
  segments.push_back(block);
  block->pool->free_blocks.erase(block);
  segments_.erase(block);
  if (isPoisonOn()) {
    poisoned_.forget(*block);
  }
  if (PrivatePool* owner = block->pool->owner) {
    --owner->segment_count;
  }
  statistics_.removeSegment(*block);
  record(TraceEntry::SEGMENT_FREE, *block, block->segmentContext());
}

void DeviceCachingAllocator::giveBack(const std::vector<Block*>& segments) {
  const RelaxedCaptureGuard relaxed;
  for (Block* block : segments) {
    OPENREG_CHECK(orFree(block->address));
    delete block;
  }
}

void DeviceCachingAllocator::emptyCache(MempoolId_t pool) {
  const std::lock_guard<std::mutex> turn(waiting_mutex_);
  waitForOtherStreams();
  std::vector<Block*> segments;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = private_pools_.find(pool); found != private_pools_.end()) {
      detachFreeSegments(found->second.small, segments);
      detachFreeSegments(found->second.large, segments);
    }
    if (pool == kDefaultPools) {
      detachCachedSegments(segments);
    }
  }
  giveBack(segments);
}

bool DeviceCachingAllocator::isGarbageDue() const {
  const double threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  return threshold > 0 && static_cast<double>(statistics_.reservedBytes()) >
                              threshold * static_cast<double>(limit());
}

// Detaches segments that have not been asked for in a long time, oldest first, until what is
// reserved is below the threshold. The age of a segment is the number of searches it has been
// passed over; those of at least average age go, as long as there are any.
std::vector<Block*> DeviceCachingAllocator::detachGarbage() {
  std::vector<Block*> segments;
  while (isGarbageDue()) {
    std::vector<Block*> candidates;
    uint64_t total_age = 0;
    for (BlockPool* pool : {&small_, &large_}) {
      for (Block* block : pool->free_blocks) {
        if (!block->isSplit()) {
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
      detachSegment(block, segments);
    }
  }
  return segments;
}

void DeviceCachingAllocator::throwOutOfMemory(const Request& request) {
  size_t free_size = 0;
  size_t total_size = 0;
  OPENREG_CHECK(orMemGetInfo(&free_size, &total_size, device_));
  size_t allocated = 0;
  size_t reserved = 0;
  size_t reserved_privately = 0;
  size_t allowed = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    statistics_.countOutOfMemory();
    allocated = statistics_.allocatedBytes();
    reserved = statistics_.reservedBytes();
    allowed = limit();
    reserved_privately = statistics_.privatelyReservedBytes();
    record(TraceEntry::OOM, free_size, request.size, request.stream, poolFor(request).id(),
           request.context);
  }
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(request.size), allocated, reserved,
                                   Device(kDeviceType, device_));
  std::string limits;
  if (allowed < total_size) {
    limits = c10::str(" This process may reserve ", format_size(allowed),
                      " (torch.openreg.set_per_process_memory_fraction).");
  }
  std::string pools;
  if (reserved_privately > 0) {
    pools = c10::str(" Private pools of graphs and of MemPool hold ",
                     format_size(reserved_privately), ".");
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, servesCuda() ? "CUDA" : "OpenReg",
                   " out of memory. Tried to allocate ", format_size(request.size), ". Device ",
                   static_cast<int>(device_), " has a total capacity of ", format_size(total_size),
                   " of which ", format_size(free_size), " is free.", limits,
                   " Of the memory in use, ", format_size(allocated),
                   " is allocated by PyTorch, and ", format_size(reserved - allocated),
                   " is reserved by PyTorch but unallocated.", pools,
                   " The capacity is the setting OPENREG_DEVICE_MEMORY. If much is reserved but "
                   "unallocated, it may be fragmented: see torch.openreg.memory_summary(), and "
                   "max_split_size_mb in PYTORCH_ALLOC_CONF.");
}

// --- Private pools

PrivatePool& DeviceCachingAllocator::findOrCreatePool(MempoolId_t id) {
  TORCH_CHECK(id != kDefaultPools, "a memory pool's id must not be (0, 0)");
  return private_pools_.try_emplace(id, id).first->second;
}

void DeviceCachingAllocator::retainPool(MempoolId_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++findOrCreatePool(id).use_count;
}

void DeviceCachingAllocator::releasePool(MempoolId_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = private_pools_.find(id);
  TORCH_CHECK(found != private_pools_.end() && found->second.use_count > 0, "memory pool (",
              id.first, ", ", id.second, ") of device ", static_cast<int>(device_),
              " has no user that could release it");
  --found->second.use_count;
}

int DeviceCachingAllocator::poolUseCount(MempoolId_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = private_pools_.find(id);
  return found == private_pools_.end() ? 0 : found->second.use_count;
}

void DeviceCachingAllocator::beginAllocateToPool(MempoolId_t id, StreamFilter filter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  PrivatePool& pool = findOrCreatePool(id);
  for (const auto& [other, unused] : allocating_to_) {
    TORCH_CHECK(other != &pool, "memory pool (", id.first, ", ", id.second,
                ") is already being allocated to");
  }
  ++pool.use_count;
  allocating_to_.emplace_back(&pool, std::move(filter));
}

void DeviceCachingAllocator::endAllocateToPool(MempoolId_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t erased = std::erase_if(
      allocating_to_, [&](const auto& redirection) { return redirection.first->id == id; });
  TORCH_CHECK(erased == 1, "memory pool (", id.first, ", ", id.second,
              ") is not being allocated to");
}

// --- Limits

size_t DeviceCachingAllocator::limit() const {
  orDeviceProp properties{};
  OPENREG_CHECK(orGetDeviceProperties(&properties, device_));
  return static_cast<size_t>(memory_fraction_ * static_cast<double>(properties.totalGlobalMem));
}

void DeviceCachingAllocator::setMemoryFraction(double fraction) {
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_fraction_ = fraction;
}

double DeviceCachingAllocator::memoryFraction() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return memory_fraction_;
}

// --- Statistics, state and history

DeviceStats DeviceCachingAllocator::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_.all();
}

void DeviceCachingAllocator::resetAccumulatedStats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  statistics_.resetAccumulated();
}

void DeviceCachingAllocator::resetPeakStats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  statistics_.resetPeak();
}

std::pair<size_t, size_t> DeviceCachingAllocator::usage() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {statistics_.allocatedBytes(), statistics_.reservedBytes()};
}

void DeviceCachingAllocator::record(TraceEntry::Action action, size_t address, size_t size,
                                    const OpenRegStream& stream, MempoolId_t pool,
                                    std::shared_ptr<GatheredContext> context) {
  history_.record(action, device_, address, size, stream.id(), pool, std::move(context));
}

void DeviceCachingAllocator::record(TraceEntry::Action action, const Block& block,
                                    std::shared_ptr<GatheredContext> context) {
  record(action, reinterpret_cast<size_t>(block.address), block.size, *block.stream,
         block.pool->id(), std::move(context));
}

std::vector<SegmentInfo> DeviceCachingAllocator::snapshot(MempoolId_t pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  record(TraceEntry::SNAPSHOT, 0, statistics_.reservedBytes(), getDefaultOpenRegStream(device_),
         kDefaultPools, nullptr);
  return describeSegments(segments_, pool, search_count_);
}

std::vector<MemoryHistory::TraceEntry> DeviceCachingAllocator::history() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return history_.entries();
}

void DeviceCachingAllocator::clearHistory() {
  const std::lock_guard<std::mutex> lock(mutex_);
  history_.clear();
}

bool DeviceCachingAllocator::isValid() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<SegmentTotals> totals = totalsOf(segments_);
  size_t free_count = 0;
  forEachPool([&](const BlockPool& pool) { free_count += pool.free_blocks.size(); });
  return totals.has_value() && totals->free_count == free_count &&
         totals->reserved == statistics_.reservedBytes() &&
         totals->allocated == statistics_.allocatedBytes();
}

uint32_t DeviceCachingAllocator::beginCheck() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ++check_count_;
}

std::vector<Corruption> DeviceCachingAllocator::findCorruptions(uint32_t check) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Corruption> found;
  for (const Block* first : segments_) {
    for (const Block* block = first; block != nullptr; block = block->next) {
      std::optional<Corruption> corruption;
      if (block->is_allocated) {
        corruption = findCorruption(*block);
      } else if (block->isFree() && block->pool->owner == nullptr) {
        // The owner of a private pool may write to its free blocks: a graph does at each replay.
        corruption = poisoned_.findCorruption(*block);
        if (block->freed_before_check <= check) {
          poisoned_.fill(*block);
        }
      }
      if (corruption.has_value()) {
        found.push_back(std::move(*corruption));
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Corruption& a, const Corruption& b) { return a.address < b.address; });
  return found;
}

}  // namespace c10::openreg
