#include "csrc/memory/DeviceCachingAllocator.h"

#include <c10/util/StringUtil.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/CaptureMode.h"
#include "csrc/core/DeviceName.h"
#include "csrc/memory/Allocator.h"
#include "csrc/memory/BlockObserver.h"
#include "csrc/memory/OutOfMemory.h"
#include "torch_openreg/core/Observer.h"

namespace c10::openreg {
namespace {

using CachingDeviceAllocator::RecordContext;

// One exabyte, the largest size that CUDA's allocator accepts.
constexpr size_t kMaxSize = size_t{1} << 60;

size_t guardSize() {
  const BlockObserver* observer = blockObserver();
  return C10_LIKELY(observer == nullptr) ? 0 : observer->guardSize();
}

}  // namespace

// --- Allocation

// docs: allocate
Block* DeviceCachingAllocator::allocate(size_t size, const OpenRegStream& stream) {
  TORCH_CHECK_WITH(OutOfMemoryError, size <= kMaxSize, deviceName(),
                   " out of memory. Tried to allocate more than 1EB memory.");
  // Gathering stacks, calls that free memory, and waits for the device happen without the lock.
  const BlockRequest request{size, roundedBlockSize(size + guardSize()), stream,
                             gatherContext(RecordContext::STATE)};
  Block* block = tryAllocate(request);
  if (block == nullptr) {
    observeShortage(&Observer::memoryShortage, device_);
    const BlockingRegion region;
    block = retryAllocate(request);
  }
  if (block == nullptr) {
    throwOutOfMemory(request);
  }
  observe(&Observer::memoryAllocation, block->address, size, block->size, stream,
          block->pool->id());
  if (BlockObserver* observer = blockObserver(); C10_UNLIKELY(observer != nullptr)) {
    try {
      observer->beforeFirstUse(*block);
    } catch (const c10::Error&) {
      free(block);
      throw;
    }
  }
  return block;
}

// The path of nearly all calls: a block of the cache, or of a new segment. Never waits.
Block* DeviceCachingAllocator::tryAllocate(const BlockRequest& request) {
  recordPendingUses();
  const Lock lock(mutex_);
  finishPendingUses();
  Block* block = cache_.reuse(request);
  return block != nullptr || cache_.isGarbageDue() ? block : cache_.reserve(request);
}

// There is no free range, or too much is cached: releases memory to the device, which waits.
Block* DeviceCachingAllocator::retryAllocate(const BlockRequest& request) {
  const Lock turn(waiting_mutex_);
  std::vector<Block*> segments;
  {
    const Lock lock(mutex_);
    cache_.takeHeldBack();
    segments = cache_.detachGarbage();
  }
  giveBack(segments);
  if (Block* block = take(request)) {
    return block;
  }
  // Waits for blocks that other streams still use. If none of them fits, releases everything
  // unused, which also merges free ranges, and tries once more.
  waitForOtherStreams();
  {
    const Lock lock(mutex_);
    cache_.statistics().countRetry();
    if (Block* block = cache_.reuse(request)) {
      return block;
    }
    segments = cache_.detachUnused(nullptr);
  }
  giveBack(segments);
  Block* block = take(request);
  if (block == nullptr) {
    const Lock lock(mutex_);
    block = cache_.reuseOfPools(request);
  }
  return block;
}
// docs: end

// Takes a block of the cache, or a new segment, without releasing memory.
Block* DeviceCachingAllocator::take(const BlockRequest& request) {
  const Lock lock(mutex_);
  finishPendingUses();
  Block* block = cache_.reuse(request);
  return block != nullptr ? block : cache_.reserve(request);
}

// --- Free

void DeviceCachingAllocator::free(Block* block) noexcept {
  observe(&Observer::memoryDeallocation, block->address, block->size, *block->stream,
          block->pool->id());
  std::shared_ptr<GatheredContext> context;
  try {
    context = gatherContext(RecordContext::ALL);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "openreg: the stack of a free could not be recorded: %s\n", error.what());
  }
  if (BlockObserver* observer = blockObserver();
      C10_UNLIKELY(observer != nullptr) && observer->shouldHoldBack(*block)) {
    const Lock lock(mutex_);
    cache_.holdBack(block, context);
    return;
  }
  {
    const Lock lock(mutex_);
    if (cache_.takeBack(block, context)) {
      return;
    }
    pending_.add(block);
    has_unrecorded_uses_.store(true, std::memory_order_relaxed);
  }
  recordPendingUses();
}

namespace {

// What observers say of a freed block that other streams use.
Reuse whenToReuse(const Block& block) noexcept {
  if (!isObserved()) {
    return Reuse::WhenDone;
  }
  const auto& used_on = block.extras->used_on;
  const std::vector<OpenRegStream> streams(used_on.begin(), used_on.end());
  try {
    return observe(&Observer::memoryReuse, block.address, streams);
  } catch (const c10::Error&) {
    return Reuse::WhenDone;
  }
}

}  // namespace

// Records the pending uses of freed blocks by other streams, except for streams that capture.
void DeviceCachingAllocator::recordPendingUses() noexcept {
  if (!has_unrecorded_uses_.load(std::memory_order_relaxed)) {
    return;
  }
  std::vector<Block*> blocks;
  {
    const Lock lock(mutex_);
    blocks = pending_.takeRecordable();
    has_unrecorded_uses_.store(pending_.hasUnrecorded(), std::memory_order_relaxed);
  }
  for (Block* block : blocks) {
    const Reuse reuse = whenToReuse(*block);
    if (reuse == Reuse::NotYet) {
      const Lock lock(mutex_);
      pending_.add(block);
      has_unrecorded_uses_.store(true, std::memory_order_relaxed);
      continue;
    }
    PendingFrees::Uses uses = PendingFrees::recordUses(block);
    const bool is_ordered = reuse == Reuse::InOrder && PendingFrees::order(*block, uses);
    const Lock lock(mutex_);
    if (is_ordered) {
      block->extras->used_on.clear();
      block->pending_uses = 0;
      cache_.makeFree(block);
    } else {
      pending_.watch(block, std::move(uses));
    }
  }
}

void DeviceCachingAllocator::finishPendingUses() {
  if (!pending_.isEmpty()) {
    for (Block* block : pending_.takeFinished()) {
      block->pending_uses = 0;
      cache_.makeFree(block);
    }
  }
}

std::vector<OpenRegStream> DeviceCachingAllocator::streamsOf(Block* block) {
  const Lock lock(mutex_);
  std::vector<OpenRegStream> streams{*block->stream};
  if (block->extras != nullptr) {
    const auto& used_on = block->extras->used_on;
    streams.insert(streams.end(), used_on.begin(), used_on.end());
  }
  return streams;
}

void DeviceCachingAllocator::recordStream(Block* block, const OpenRegStream& stream) {
  observe(&Observer::memoryUse, block->address, stream);
  const Lock lock(mutex_);
  if (stream != *block->stream) {
    block->findOrCreateExtras().used_on.insert(stream);
  }
}

// Waits for the uses that keep freed blocks from being reused.
void DeviceCachingAllocator::waitForOtherStreams() {
  recordPendingUses();
  std::vector<PendingFrees::EventRef> events;
  {
    const Lock lock(mutex_);
    cache_.statistics().countWait();
    events = pending_.latestEvents();
  }
  {
    const RelaxedCaptureGuard relaxed;
    for (const PendingFrees::EventRef& event : events) {
      event->waitUntilComplete();
    }
  }
  const Lock lock(mutex_);
  finishPendingUses();
}

// --- Release of memory

// Releases detached segments. Needs no lock; waits for the device.
void DeviceCachingAllocator::giveBack(const std::vector<Block*>& segments) {
  const RelaxedCaptureGuard relaxed;
  for (Block* block : segments) {
    if (block->is_expandable) {
      OPENREG_CHECK(orMemUnmap(block->address, block->size));
      const Lock lock(mutex_);
      cache_.finishUnmapping(block);
      continue;
    }
    OPENREG_CHECK(orFree(block->address));
    delete block;
  }
}

void DeviceCachingAllocator::emptyCache(MempoolId_t pool) {
  const auto context = gatherContext(RecordContext::ALL);
  const Lock turn(waiting_mutex_);
  waitForOtherStreams();
  std::vector<Block*> segments;
  {
    const Lock lock(mutex_);
    cache_.takeHeldBack();
    segments = cache_.detachUnused(pool, context);
  }
  giveBack(segments);
}

void DeviceCachingAllocator::finishPendingFrees() {
  const Lock turn(waiting_mutex_);
  waitForOtherStreams();
}

void DeviceCachingAllocator::throwOutOfMemory(const BlockRequest& request) {
  OutOfMemory failed{};
  failed.device = device_;
  failed.requested = request.size;
  failed.segment = segmentSize(request.rounded);
  OPENREG_CHECK(orMemGetInfo(&failed.free, &failed.total, device_));
  {
    const Lock lock(mutex_);
    cache_.recordOutOfMemory(request, failed.free);
    failed.allocated = cache_.statistics().allocatedBytes();
    failed.reserved = cache_.statistics().reservedBytes();
    failed.reserved_privately = cache_.statistics().privatelyReservedBytes();
    failed.allowed = cache_.limit();
  }
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(request.size), failed.allocated,
                                   failed.reserved, Device(kDeviceType, device_));
  observeShortage(&Observer::memoryExhaustion, device_, request.size,
                  std::min(failed.allowed, failed.total), failed.free);
  TORCH_CHECK_WITH(OutOfMemoryError, false, describe(failed));
}

}  // namespace c10::openreg
