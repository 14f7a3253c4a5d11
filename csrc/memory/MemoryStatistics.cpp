#include "csrc/memory/MemoryStatistics.h"

#include <c10/core/AllocatorConfig.h>

#include <algorithm>

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;
using CachingAllocator::Stat;
using CachingAllocator::StatArray;
using CachingAllocator::StatType;
using CachingDeviceAllocator::DeviceStats;

size_t currentTotal(const StatArray& stat) {
  return static_cast<size_t>(stat[static_cast<size_t>(StatType::AGGREGATE)].current);
}

void change(Stat& stat, size_t amount, bool is_added) {
  is_added ? stat.increase(amount) : stat.decrease(amount);
}

// For the pool, and for all pools.
void change(StatArray& stat, const BlockPool& pool, size_t amount, bool is_added) {
  change(stat[static_cast<size_t>(StatType::AGGREGATE)], amount, is_added);
  change(stat[static_cast<size_t>(pool.type)], amount, is_added);
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

}  // namespace

void MemoryStatistics::changeReserved(const Block& block, bool is_added) {
  change(stats_.segment, *block.pool, 1, is_added);
  if (block.is_oversize_segment) {
    change(stats_.oversize_segments, 1, is_added);
  }
  changeReservedBytes(block, is_added);
}

void MemoryStatistics::changeReservedBytes(const Block& block, bool is_added) {
  change(stats_.reserved_bytes, *block.pool, block.size, is_added);
  if (const PrivatePool* owner = block.pool->owner) {
    change(stats_.reserved_bytes_by_private_pools[owner->id], *block.pool, block.size, is_added);
  }
  ++(is_added ? stats_.num_device_alloc : stats_.num_device_free);
}

void MemoryStatistics::changeActive(const Block& block, bool is_added) {
  change(stats_.active, *block.pool, 1, is_added);
  change(stats_.active_bytes, *block.pool, block.size, is_added);
  change(stats_.requested_bytes, *block.pool, block.requested_size, is_added);
}

void MemoryStatistics::changeInactiveSplit(const Block& block, bool is_added) {
  if (block.isSplit() && !block.is_expandable) {
    change(stats_.inactive_split, *block.pool, 1, is_added);
    change(stats_.inactive_split_bytes, *block.pool, block.size, is_added);
  }
}

void MemoryStatistics::changeAllocation(const Block& block, bool is_added) {
  change(stats_.allocation, *block.pool, 1, is_added);
  change(stats_.allocated_bytes, *block.pool, block.size, is_added);
  if (block.is_oversize_allocation) {
    change(stats_.oversize_allocations, 1, is_added);
  }
}

void MemoryStatistics::addAllocation(const Block& block) {
  changeAllocation(block, true);
  changeActive(block, true);
}

void MemoryStatistics::removeAllocation(const Block& block) { changeAllocation(block, false); }

size_t MemoryStatistics::allocatedBytes() const { return currentTotal(stats_.allocated_bytes); }

size_t MemoryStatistics::reservedBytes() const { return currentTotal(stats_.reserved_bytes); }

size_t MemoryStatistics::privatelyReservedBytes() const {
  size_t total = 0;
  for (const auto& [id, stat] : stats_.reserved_bytes_by_private_pools) {
    total += currentTotal(stat);
  }
  return total;
}

DeviceStats MemoryStatistics::all() const {
  DeviceStats stats = stats_;
  stats.max_split_size = static_cast<int64_t>(AcceleratorAllocatorConfig::max_split_size());
  return stats;
}

void MemoryStatistics::resetAccumulated() {
  forEachStat(stats_, [](Stat& one) { one.reset_accumulated(); });
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
}

void MemoryStatistics::resetPeak() {
  forEachStat(stats_, [](Stat& one) { one.reset_peak(); });
}

}  // namespace c10::openreg
