#include "csrc/memory/DeviceCachingAllocator.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/StringUtil.h>
#include <c10/util/llvmMathExtras.h>
#include <openreg/openreg.h>

#include <algorithm>

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;
using CachingAllocator::Stat;
using CachingAllocator::StatType;

// Sizes are c10's, so that a program sees the numbers it knows from other devices.
constexpr size_t kRounding = 512;
static_assert(kRounding % OPENREG_MEMORY_ALIGNMENT == 0, "blocks keep the device's alignment");
constexpr size_t kSmallSize = CachingAllocator::kSmallSize;
constexpr size_t kSmallSegment = 2 * 1024 * 1024;
constexpr size_t kMinLargeAlloc = CachingAllocator::kMinLargeAlloc;
constexpr size_t kRoundLarge = CachingAllocator::kRoundLarge;

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

std::string formatSize(size_t size) {
  constexpr std::array<const char*, 3> units = {"KiB", "MiB", "GiB"};
  if (size < 1024) {
    return c10::str(size, " bytes");
  }
  double value = static_cast<double>(size) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, units[unit]);
  return text.data();
}

}  // namespace

template <typename Update>
void DeviceCachingAllocator::updateStat(std::array<Stat, 3>& stat, const BlockPool& pool,
                                        Update&& update) {
  update(stat[static_cast<size_t>(StatType::AGGREGATE)]);
  update(stat[static_cast<size_t>(pool.type)]);
}

void DeviceCachingAllocator::changeActive(const Block& block, bool is_active) {
  const auto change = [&](auto& stat, size_t amount) {
    updateStat(stat, *block.pool,
               [&](Stat& one) { is_active ? one.increase(amount) : one.decrease(amount); });
  };
  change(stats_.active, 1);
  change(stats_.active_bytes, block.size);
}

void DeviceCachingAllocator::changeInactiveSplit(const Block& block, bool is_added) {
  if (!block.isSplit()) {
    return;
  }
  const auto change = [&](auto& stat, size_t amount) {
    updateStat(stat, *block.pool,
               [&](Stat& one) { is_added ? one.increase(amount) : one.decrease(amount); });
  };
  change(stats_.inactive_split, 1);
  change(stats_.inactive_split_bytes, block.size);
}

BlockPool& DeviceCachingAllocator::poolFor(size_t size) {
  return size <= kSmallSize ? small_ : large_;
}

// docs: allocate
Block* DeviceCachingAllocator::allocate(size_t size, const OpenRegStream& stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  processEvents();
  const size_t rounded = roundedSize(size);
  BlockPool& pool = poolFor(rounded);
  Block* block = takeFromCache(pool, rounded, stream);
  if (block == nullptr) {
    block = takeFromDevice(pool, rounded, stream);
  }
  if (block == nullptr) {
    // Not enough: wait for what other streams still hold; then give everything unused back, which
    // also joins free ranges, and try once more.
    ++stats_.num_alloc_retries;
    waitForEvents();
    block = takeFromCache(pool, rounded, stream);
  }
  if (block == nullptr) {
    releaseCachedSegments();
    block = takeFromDevice(pool, rounded, stream);
  }
  if (block == nullptr) {
    throwOutOfMemory(size, lock);
  }
  // docs: end
  splitIfWorthwhile(block, rounded);
  block->is_allocated = true;
  block->requested_size = size;
  updateStat(stats_.allocation, pool, [](Stat& one) { one.increase(1); });
  updateStat(stats_.allocated_bytes, pool, [&](Stat& one) { one.increase(block->size); });
  updateStat(stats_.requested_bytes, pool, [&](Stat& one) { one.increase(size); });
  changeActive(*block, true);
  if (block->size >= AcceleratorAllocatorConfig::max_split_size()) {
    stats_.oversize_allocations.increase(1);
  }
  return block;
}

Block* DeviceCachingAllocator::takeFromCache(BlockPool& pool, size_t size,
                                             const OpenRegStream& stream) {
  Block key{device_, stream};
  key.size = size;
  const auto found = pool.free_blocks.lower_bound(&key);
  if (found == pool.free_blocks.end() || (*found)->stream != stream) {
    return nullptr;
  }
  Block* block = *found;
  const size_t max_split_size = AcceleratorAllocatorConfig::max_split_size();
  // A block too large to split may only serve a request of about its own size.
  if ((size < max_split_size && block->size >= max_split_size) ||
      (size >= max_split_size &&
       block->size >= size + AcceleratorAllocatorConfig::max_non_split_rounding_size())) {
    return nullptr;
  }
  changeInactiveSplit(*block, false);
  pool.free_blocks.erase(found);
  return block;
}

Block* DeviceCachingAllocator::takeFromDevice(BlockPool& pool, size_t size,
                                              const OpenRegStream& stream) {
  void* address = nullptr;
  const size_t segment_size = segmentSize(size);
  const DeviceIndex previous = exchangeDevice(device_);
  const orError_t error = orMalloc(&address, segment_size);
  exchangeDevice(previous);
  if (error == orErrorMemoryAllocation) {
    // The caller tries again or reports; it is not this thread's last error.
    std::ignore = orGetLastError();
    return nullptr;
  }
  OPENREG_CHECK(error);
  ++stats_.num_device_alloc;
  auto* block = new Block{device_, stream};
  block->size = segment_size;
  block->pool = &pool;
  block->address = static_cast<std::byte*>(address);
  blocks_.insert(block);
  updateStat(stats_.segment, pool, [](Stat& one) { one.increase(1); });
  updateStat(stats_.reserved_bytes, pool, [&](Stat& one) { one.increase(segment_size); });
  if (segment_size >= AcceleratorAllocatorConfig::max_split_size()) {
    stats_.oversize_segments.increase(1);
  }
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
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) {
    rest->next->previous = rest;
  }
  block->next = rest;
  block->size = size;
  blocks_.insert(rest);
  rest->pool->free_blocks.insert(rest);
  changeInactiveSplit(*rest, true);
}

void DeviceCachingAllocator::free(Block* block) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  block->is_allocated = false;
  const size_t requested = block->requested_size;
  updateStat(stats_.allocation, *block->pool, [](Stat& one) { one.decrease(1); });
  updateStat(stats_.allocated_bytes, *block->pool, [&](Stat& one) { one.decrease(block->size); });
  updateStat(stats_.requested_bytes, *block->pool, [&](Stat& one) { one.decrease(requested); });
  block->requested_size = 0;
  if (block->size >= AcceleratorAllocatorConfig::max_split_size()) {
    stats_.oversize_allocations.decrease(1);
  }
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
    ++block->pending_events;
    std::fprintf(stderr, "openreg: a block of device memory is lost: %s\n",
                 error.what_without_backtrace());
    return;
  }
  if (block->isFree()) {
    makeFree(block);
  }
}

void DeviceCachingAllocator::makeFree(Block* block) {
  changeActive(*block, false);
  for (Block* neighbour : {block->previous, block->next}) {
    mergeWith(block, neighbour);
  }
  block->pool->free_blocks.insert(block);
  changeInactiveSplit(*block, true);
}

// Joins a free neighbour into the block; the neighbour is deleted.
bool DeviceCachingAllocator::mergeWith(Block* block, Block* neighbour) {
  if (neighbour == nullptr || !neighbour->isFree()) {
    return false;
  }
  changeInactiveSplit(*neighbour, false);
  neighbour->pool->free_blocks.erase(neighbour);
  if (neighbour == block->previous) {
    block->address = neighbour->address;
    block->previous = neighbour->previous;
    if (block->previous != nullptr) {
      block->previous->next = block;
    }
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) {
      block->next->previous = block;
    }
  }
  block->size += neighbour->size;
  blocks_.erase(neighbour);
  delete neighbour;
  return true;
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
  for (auto entry = events_.begin(); entry != events_.end();) {
    auto& queue = entry->second;
    while (!queue.empty() && queue.front().first.isComplete()) {
      Block* block = queue.front().second;
      queue.pop_front();
      if (--block->pending_events == 0) {
        makeFree(block);
      }
    }
    entry = queue.empty() ? events_.erase(entry) : std::next(entry);
  }
}

void DeviceCachingAllocator::waitForEvents() {
  ++stats_.num_sync_all_streams;
  for (auto& [stream, queue] : events_) {
    queue.back().first.synchronize();
  }
  processEvents();
}

size_t DeviceCachingAllocator::releaseCachedSegments() {
  size_t released = 0;
  for (BlockPool* pool : {&small_, &large_}) {
    for (auto it = pool->free_blocks.begin(); it != pool->free_blocks.end();) {
      Block* block = *it;
      if (block->isSplit()) {
        ++it;
        continue;
      }
      it = pool->free_blocks.erase(it);
      released += block->size;
      releaseSegment(block);
    }
  }
  return released;
}

void DeviceCachingAllocator::releaseSegment(Block* block) {
  OPENREG_CHECK(orFree(block->address));
  ++stats_.num_device_free;
  updateStat(stats_.segment, *block->pool, [](Stat& one) { one.decrease(1); });
  updateStat(stats_.reserved_bytes, *block->pool, [&](Stat& one) { one.decrease(block->size); });
  if (block->size >= AcceleratorAllocatorConfig::max_split_size()) {
    stats_.oversize_segments.decrease(1);
  }
  blocks_.erase(block);
  delete block;
}

void DeviceCachingAllocator::emptyCache() {
  const std::lock_guard<std::mutex> lock(mutex_);
  waitForEvents();
  releaseCachedSegments();
}

void DeviceCachingAllocator::throwOutOfMemory(size_t size, std::unique_lock<std::mutex>& lock) {
  ++stats_.num_ooms;
  const auto aggregate = static_cast<size_t>(StatType::AGGREGATE);
  const auto allocated = static_cast<size_t>(stats_.allocated_bytes[aggregate].current);
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes[aggregate].current);
  lock.unlock();
  size_t free_size = 0;
  size_t total_size = 0;
  OPENREG_CHECK(orMemGetInfo(&free_size, &total_size, device_));
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), allocated, reserved,
                                   Device(kDeviceType, device_));
  TORCH_CHECK_WITH(OutOfMemoryError, false, "OpenReg out of memory. Tried to allocate ",
                   formatSize(size), ". Device ", static_cast<int>(device_),
                   " has a total capacity of ", formatSize(total_size), " of which ",
                   formatSize(free_size), " is free. Of the memory in use, ", formatSize(allocated),
                   " is allocated by PyTorch, and ", formatSize(reserved - allocated),
                   " is reserved by PyTorch but unallocated. The capacity is the setting "
                   "OPENREG_DEVICE_MEMORY.");
}

CachingDeviceAllocator::DeviceStats DeviceCachingAllocator::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.max_split_size = static_cast<int64_t>(AcceleratorAllocatorConfig::max_split_size());
  return stats_;
}

void DeviceCachingAllocator::resetAccumulatedStats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto* stat : {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split,
                     &stats_.allocated_bytes, &stats_.reserved_bytes, &stats_.active_bytes,
                     &stats_.inactive_split_bytes, &stats_.requested_bytes}) {
    for (Stat& one : *stat) {
      one.reset_accumulated();
    }
  }
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
  stats_.oversize_allocations.reset_accumulated();
  stats_.oversize_segments.reset_accumulated();
}

void DeviceCachingAllocator::resetPeakStats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto* stat : {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split,
                     &stats_.allocated_bytes, &stats_.reserved_bytes, &stats_.active_bytes,
                     &stats_.inactive_split_bytes, &stats_.requested_bytes}) {
    for (Stat& one : *stat) {
      one.reset_peak();
    }
  }
  stats_.oversize_allocations.reset_peak();
  stats_.oversize_segments.reset_peak();
}

std::pair<size_t, size_t> DeviceCachingAllocator::usage() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto aggregate = static_cast<size_t>(StatType::AGGREGATE);
  return {static_cast<size_t>(stats_.allocated_bytes[aggregate].current),
          static_cast<size_t>(stats_.reserved_bytes[aggregate].current)};
}

bool DeviceCachingAllocator::isValid() {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t reserved = 0;
  size_t allocated = 0;
  size_t free_count = 0;
  for (const Block* block : blocks_) {
    reserved += block->size;
    allocated += block->is_allocated ? block->size : 0;
    free_count += block->isFree() ? 1 : 0;
    const Block* next = block->next;
    if (next != nullptr &&
        (next->previous != block || next->address != block->address + block->size ||
         next->pool != block->pool || (next->isFree() && block->isFree()))) {
      return false;
    }
    if (block->isFree() != (block->pool->free_blocks.count(const_cast<Block*>(block)) == 1)) {
      return false;
    }
  }
  const auto aggregate = static_cast<size_t>(StatType::AGGREGATE);
  return free_count == small_.free_blocks.size() + large_.free_blocks.size() &&
         reserved == static_cast<size_t>(stats_.reserved_bytes[aggregate].current) &&
         allocated == static_cast<size_t>(stats_.allocated_bytes[aggregate].current);
}

}  // namespace c10::openreg
