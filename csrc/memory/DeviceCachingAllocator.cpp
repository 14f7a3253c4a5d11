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
using CachingAllocator::Stat;
using CachingAllocator::StatArray;
using CachingAllocator::StatType;
using CachingDeviceAllocator::BlockInfo;
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

size_t addressOf(const Block& block) { return reinterpret_cast<size_t>(block.address); }

size_t currentTotal(const StatArray& stat) {
  return static_cast<size_t>(stat[static_cast<size_t>(StatType::AGGREGATE)].current);
}

// Visits every Stat of the statistics.
template <typename Visit>
void forEachStat(DeviceStats& stats, Visit&& visit) {
  for (StatArray* array : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                           &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                           &stats.inactive_split_bytes, &stats.requested_bytes}) {
    std::for_each(array->begin(), array->end(), visit);
  }
  for (auto& [id, array] : stats.reserved_bytes_by_private_pools) {
    std::for_each(array.begin(), array.end(), visit);
  }
  visit(stats.oversize_allocations);
  visit(stats.oversize_segments);
}

void change(Stat& stat, size_t amount, bool is_added) {
  is_added ? stat.increase(amount) : stat.decrease(amount);
}

}  // namespace

// --- Statistics

template <typename Update>
void DeviceCachingAllocator::updateStat(StatArray& stat, const BlockPool& pool, Update&& update) {
  update(stat[static_cast<size_t>(StatType::AGGREGATE)]);
  update(stat[static_cast<size_t>(pool.type)]);
}

void DeviceCachingAllocator::changeReserved(const Block& block, bool is_added) {
  const auto bytes = [&](Stat& one) { change(one, block.size, is_added); };
  updateStat(stats_.segment, *block.pool, [&](Stat& one) { change(one, 1, is_added); });
  updateStat(stats_.reserved_bytes, *block.pool, bytes);
  if (block.is_oversize_segment) {
    change(stats_.oversize_segments, 1, is_added);
  }
  if (PrivatePool* owner = block.pool->owner) {
    updateStat(stats_.reserved_bytes_by_private_pools[owner->id], *block.pool, bytes);
    owner->segment_count += is_added ? 1 : -1;
  }
}

void DeviceCachingAllocator::changeActive(const Block& block, bool is_active) {
  updateStat(stats_.active, *block.pool, [&](Stat& one) { change(one, 1, is_active); });
  updateStat(stats_.active_bytes, *block.pool,
             [&](Stat& one) { change(one, block.size, is_active); });
}

void DeviceCachingAllocator::changeInactiveSplit(const Block& block, bool is_added) {
  if (!block.isSplit()) {
    return;
  }
  updateStat(stats_.inactive_split, *block.pool, [&](Stat& one) { change(one, 1, is_added); });
  updateStat(stats_.inactive_split_bytes, *block.pool,
             [&](Stat& one) { change(one, block.size, is_added); });
}

CachingDeviceAllocator::DeviceStats DeviceCachingAllocator::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.max_split_size = static_cast<int64_t>(AcceleratorAllocatorConfig::max_split_size());
  return stats_;
}

void DeviceCachingAllocator::resetAccumulatedStats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  forEachStat(stats_, [](Stat& one) { one.reset_accumulated(); });
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
}

void DeviceCachingAllocator::resetPeakStats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  forEachStat(stats_, [](Stat& one) { one.reset_peak(); });
}

std::pair<size_t, size_t> DeviceCachingAllocator::usage() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {currentTotal(stats_.allocated_bytes), currentTotal(stats_.reserved_bytes)};
}

// --- Allocating

// docs: allocate
Block* DeviceCachingAllocator::allocate(size_t size, const OpenRegStream& stream) {
  // Stacks are gathered, memory is freed by others, and the device is waited for without the lock.
  Request request{size, roundedSize(size + guardSize()), stream,
                  gatherContext(RecordContext::STATE)};
  if (Block* block = tryAllocate(request)) {
    return block;
  }
  runFreeMemoryCallbacks();
  const BlockingRegion region;
  if (Block* block = retryAllocate(request)) {
    return block;
  }
  throwOutOfMemory(request);
}

// What nearly all calls come to: a block of the cache, or of a new segment. Waits for nothing.
Block* DeviceCachingAllocator::tryAllocate(Request& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  processDeferred();
  processEvents();
  request.pool = &poolFor(request);
  Block* block = takeFromCache(request);
  if (block == nullptr && !isGarbageDue()) {
    block = takeFromDevice(request);
  }
  return block == nullptr ? nullptr : handOut(block, request);
}

// There is no free range, or too much is cached: gives memory back to the device, which waits.
Block* DeviceCachingAllocator::retryAllocate(Request& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  request.pool = &poolFor(request);
  collectGarbage();
  Block* block = takeFromCache(request);
  if (block == nullptr) {
    block = takeFromDevice(request);
  }
  if (block == nullptr) {
    // Wait for what other streams still hold. If nothing of it fits, give everything unused back,
    // which also joins free ranges, and try once more.
    ++stats_.num_alloc_retries;
    waitForEvents();
    block = takeFromCache(request);
  }
  if (block == nullptr) {
    releaseCachedSegments();
    block = takeFromDevice(request);
  }
  return block == nullptr ? nullptr : handOut(block, request);
}
// docs: end

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
  changeInactiveSplit(*block, false);
  request.pool->free_blocks.erase(block);
  return block;
}

Block* DeviceCachingAllocator::takeFromDevice(const Request& request) {
  const size_t size = segmentSize(request.rounded);
  if (currentTotal(stats_.reserved_bytes) + size > limit()) {
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
  ++stats_.num_device_alloc;
  auto* block = new Block{device_, request.stream};
  block->size = size;
  block->pool = request.pool;
  block->address = static_cast<std::byte*>(address);
  block->is_oversize_segment = size >= AcceleratorAllocatorConfig::max_split_size();
  block->segment_context = request.context;
  segments_.insert(block);
  changeReserved(*block, true);
  record(TraceEntry::SEGMENT_ALLOC, addressOf(*block), size, block->stream, block->pool->id(),
         request.context);
  poison(*block);
  return block;
}

// Turns a free block that is in no pool into the request's.
Block* DeviceCachingAllocator::handOut(Block* block, const Request& request) {
  splitIfWorthwhile(block, request.rounded);
  if (!block->is_poisoned) {
    poison(*block);
  }
  block->is_allocated = true;
  block->requested_size = request.size;
  block->allocation_context = request.context;
  block->is_oversize_allocation = block->size >= AcceleratorAllocatorConfig::max_split_size();
  const BlockPool& pool = *block->pool;
  updateStat(stats_.allocation, pool, [](Stat& one) { one.increase(1); });
  updateStat(stats_.allocated_bytes, pool, [&](Stat& one) { one.increase(block->size); });
  updateStat(stats_.requested_bytes, pool, [&](Stat& one) { one.increase(request.size); });
  changeActive(*block, true);
  if (block->is_oversize_allocation) {
    stats_.oversize_allocations.increase(1);
  }
  record(TraceEntry::ALLOC, addressOf(*block), block->size, block->stream, pool.id(),
         request.context);
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
  auto* rest = new Block{device_, block->stream};
  rest->size = remaining;
  rest->pool = block->pool;
  rest->address = block->address + size;
  rest->is_poisoned = block->is_poisoned;
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
  changeInactiveSplit(*rest, true);
}

// --- Freeing

void DeviceCachingAllocator::free(Block* block) noexcept {
  std::shared_ptr<GatheredContext> context;
  try {
    context = gatherContext(RecordContext::ALL);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "openreg: the stack of a free could not be recorded: %s\n", error.what());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const BlockPool& pool = *block->pool;
  const size_t requested = block->requested_size;
  record(TraceEntry::FREE_REQUESTED, addressOf(*block), block->size, block->stream, pool.id(),
         std::move(context));
  block->is_allocated = false;
  block->requested_size = 0;
  updateStat(stats_.allocation, pool, [](Stat& one) { one.decrease(1); });
  updateStat(stats_.allocated_bytes, pool, [&](Stat& one) { one.decrease(block->size); });
  updateStat(stats_.requested_bytes, pool, [&](Stat& one) { one.decrease(requested); });
  if (block->is_oversize_allocation) {
    stats_.oversize_allocations.decrease(1);
  }
  if (!block->used_on.empty()) {
    ++block->pending_events;
    deferred_.push_back(block);
    processDeferred();
  } else {
    makeFree(block);
  }
}

// Records the events of freed blocks whose streams do not capture any more.
void DeviceCachingAllocator::processDeferred() {
  if (deferred_.empty()) {
    return;
  }
  const std::vector<Block*> deferred = std::exchange(deferred_, {});
  for (Block* block : deferred) {
    const bool must_wait = std::any_of(
        block->used_on.begin(), block->used_on.end(),
        [](const OpenRegStream& stream) { return stream.isAlive() && stream.isCapturing(); });
    if (must_wait) {
      deferred_.push_back(block);
    } else {
      recordEvents(block);
    }
  }
}

void DeviceCachingAllocator::recordEvents(Block* block) {
  try {
    for (const OpenRegStream& stream : std::exchange(block->used_on, {})) {
      if (!stream.isAlive()) {
        synchronizeDevice(stream.device_index());
        continue;
      }
      OpenRegEvent event;
      event.record(stream);
      ++block->pending_events;
      events_[stream].emplace_back(std::move(event), block);
    }
  } catch (const c10::Error& error) {
    // Without the event nobody knows when the other stream is done, so the block stays reserved.
    std::fprintf(stderr, "openreg: a block of device memory is lost: %s\n",
                 error.what_without_backtrace());
    return;
  }
  finishEvent(block);
}

void DeviceCachingAllocator::finishEvent(Block* block) {
  if (--block->pending_events == 0) {
    makeFree(block);
  }
}

void DeviceCachingAllocator::makeFree(Block* block) {
  record(TraceEntry::FREE_COMPLETED, addressOf(*block), block->size, block->stream,
         block->pool->id(), std::exchange(block->allocation_context, nullptr));
  changeActive(*block, false);
  poison(*block);
  const auto take_if_free = [this](Block* neighbour) {
    if (neighbour == nullptr || !neighbour->isFree()) {
      return false;
    }
    changeInactiveSplit(*neighbour, false);
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
  changeInactiveSplit(*block, true);
}

// Joins two neighbours that are in no pool. The upper one is deleted, so that a segment's first
// block stays.
Block* DeviceCachingAllocator::join(Block* lower, Block* upper) {
  lower->size += upper->size;
  lower->is_poisoned = lower->is_poisoned && upper->is_poisoned;
  lower->next = upper->next;
  if (lower->next != nullptr) {
    lower->next->previous = lower;
  }
  delete upper;
  return lower;
}

std::vector<OpenRegStream> DeviceCachingAllocator::streamsOf(Block* block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<OpenRegStream> streams{block->stream};
  streams.insert(streams.end(), block->used_on.begin(), block->used_on.end());
  return streams;
}

void DeviceCachingAllocator::recordStream(Block* block, const OpenRegStream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stream != block->stream) {
    block->used_on.insert(stream);
  }
}

void DeviceCachingAllocator::processEvents() {
  if (events_.empty()) {
    return;
  }
  const RelaxedCaptureGuard relaxed;
  for (auto entry = events_.begin(); entry != events_.end();) {
    auto& queue = entry->second;
    while (!queue.empty() && queue.front().first.isComplete()) {
      Block* block = queue.front().second;
      queue.pop_front();
      finishEvent(block);
    }
    entry = queue.empty() ? events_.erase(entry) : std::next(entry);
  }
}

void DeviceCachingAllocator::waitForEvents() {
  ++stats_.num_sync_all_streams;
  processDeferred();
  const RelaxedCaptureGuard relaxed;
  for (auto& [stream, queue] : events_) {
    queue.back().first.synchronize();
  }
  processEvents();
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

void DeviceCachingAllocator::releaseSegments(BlockPool& pool) {
  for (auto it = pool.free_blocks.begin(); it != pool.free_blocks.end();) {
    Block* block = *it++;
    if (!block->isSplit()) {
      releaseSegment(block);
    }
  }
}

// Of the default pools, and of private pools that nobody uses any more.
void DeviceCachingAllocator::releaseCachedSegments() {
  forEachPool([&](BlockPool& pool) {
    if (pool.owner == nullptr || pool.owner->use_count == 0) {
      releaseSegments(pool);
    }
  });
  std::erase_if(private_pools_, [](const auto& entry) {
    return entry.second.use_count == 0 && entry.second.segment_count == 0;
  });
}

// `block` is free and all of its segment.
void DeviceCachingAllocator::releaseSegment(Block* block) {
  block->pool->free_blocks.erase(block);
  const RelaxedCaptureGuard relaxed;
  OPENREG_CHECK(orFree(block->address));
  ++stats_.num_device_free;
  changeReserved(*block, false);
  record(TraceEntry::SEGMENT_FREE, addressOf(*block), block->size, block->stream, block->pool->id(),
         block->segment_context);
  segments_.erase(block);
  delete block;
}

void DeviceCachingAllocator::emptyCache(MempoolId_t pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waitForEvents();
  if (const auto found = private_pools_.find(pool); found != private_pools_.end()) {
    releaseSegments(found->second.small);
    releaseSegments(found->second.large);
  }
  if (pool == kDefaultPools) {
    releaseCachedSegments();
  }
}

bool DeviceCachingAllocator::isGarbageDue() const {
  const double threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  return threshold > 0 && static_cast<double>(currentTotal(stats_.reserved_bytes)) >
                              threshold * static_cast<double>(limit());
}

// Releases segments that have not been asked for in a long time, oldest first, until what is
// reserved is below the threshold. The age of a segment is the number of searches it has been
// passed over; those of at least average age go, as long as there are any.
void DeviceCachingAllocator::collectGarbage() {
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
      return;
    }
    const uint64_t average_age = total_age / candidates.size();
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Block* a, const Block* b) { return a->freed_at < b->freed_at; });
    for (Block* block : candidates) {
      if (!isGarbageDue() || search_count_ - block->freed_at < average_age) {
        break;
      }
      releaseSegment(block);
    }
  }
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
    ++stats_.num_ooms;
    allocated = currentTotal(stats_.allocated_bytes);
    reserved = currentTotal(stats_.reserved_bytes);
    allowed = limit();
    for (const auto& [id, stat] : stats_.reserved_bytes_by_private_pools) {
      reserved_privately += currentTotal(stat);
    }
    record(TraceEntry::OOM, free_size, request.size, request.stream, request.pool->id(),
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
  TORCH_CHECK_WITH(OutOfMemoryError, false, "OpenReg out of memory. Tried to allocate ",
                   format_size(request.size), ". Device ", static_cast<int>(device_),
                   " has a total capacity of ", format_size(total_size), " of which ",
                   format_size(free_size), " is free.", limits, " Of the memory in use, ",
                   format_size(allocated), " is allocated by PyTorch, and ",
                   format_size(reserved - allocated), " is reserved by PyTorch but unallocated.",
                   pools,
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

// --- State and history

void DeviceCachingAllocator::record(TraceEntry::Action action, size_t address, size_t size,
                                    const OpenRegStream& stream, MempoolId_t pool,
                                    std::shared_ptr<GatheredContext> context) {
  history_.record(action, device_, address, size, stream.id(), pool, std::move(context));
}

std::vector<SegmentInfo> DeviceCachingAllocator::snapshot(MempoolId_t pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SegmentInfo> segments;
  for (const Block* first : segments_) {
    if (pool != kDefaultPools && first->pool->id() != pool) {
      continue;
    }
    SegmentInfo segment;
    segment.device = device_;
    segment.address = addressOf(*first);
    segment.stream = reinterpret_cast<void*>(first->stream.id());
    segment.is_large = !first->pool->isSmall();
    segment.owner_private_pool_id = first->pool->id();
    segment.context_when_allocated = first->segment_context;
    for (const Block* block = first; block != nullptr; block = block->next) {
      const bool is_active = !block->isFree();
      segment.total_size += block->size;
      segment.requested_size += block->requested_size;
      segment.allocated_size += block->is_allocated ? block->size : 0;
      segment.active_size += is_active ? block->size : 0;
      segment.blocks.push_back({block->size, block->requested_size, 0, block->is_allocated,
                                is_active, block->allocation_context});
      if (!is_active) {
        segment.blocks.back().gc_counter = static_cast<int32_t>(search_count_ - block->freed_at);
      }
    }
    segments.push_back(std::move(segment));
  }
  std::sort(segments.begin(), segments.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  record(TraceEntry::SNAPSHOT, 0, currentTotal(stats_.reserved_bytes),
         getDefaultOpenRegStream(device_), kDefaultPools, nullptr);
  return segments;
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
  size_t reserved = 0;
  size_t allocated = 0;
  size_t free_count = 0;
  for (Block* first : segments_) {
    if (first->previous != nullptr) {
      return false;
    }
    for (Block* block = first; block != nullptr; block = block->next) {
      reserved += block->size;
      allocated += block->is_allocated ? block->size : 0;
      free_count += block->isFree() ? 1 : 0;
      const Block* next = block->next;
      if (next != nullptr &&
          (next->previous != block || next->address != block->address + block->size ||
           next->pool != block->pool || (next->isFree() && block->isFree()))) {
        return false;
      }
      if (block->isFree() != block->pool->free_blocks.contains(block)) {
        return false;
      }
    }
  }
  forEachPool([&](const BlockPool& pool) { free_count -= pool.free_blocks.size(); });
  return free_count == 0 && reserved == currentTotal(stats_.reserved_bytes) &&
         allocated == currentTotal(stats_.allocated_bytes);
}

std::vector<Corruption> DeviceCachingAllocator::findCorruptions() {
  synchronizeDevice(device_);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Corruption> found;
  for (const Block* first : segments_) {
    for (const Block* block = first; block != nullptr; block = block->next) {
      if (std::optional<Corruption> corruption = findCorruption(*block)) {
        found.push_back(std::move(*corruption));
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Corruption& a, const Corruption& b) { return a.address < b.address; });
  return found;
}

}  // namespace c10::openreg
