// The statistics of one device's allocator, in c10's form.
//
// Not thread-safe. A block is counted in its state at the call: call before it changes.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "csrc/memory/BlockPool.h"

namespace c10::openreg {

class MemoryStatistics {
 public:
  using DeviceStats = CachingDeviceAllocator::DeviceStats;

  // Counts a segment, given its only block.
  void addSegment(const Block& block) { changeReserved(block, true); }
  void removeSegment(const Block& block) { changeReserved(block, false); }

  // Counts memory of expandable segments, given the block that has it alone.
  void addMapped(const Block& block) { changeReservedBytes(block, true); }
  void removeMapped(const Block& block) { changeReservedBytes(block, false); }

  // Counts a block that was allocated; it is then active as well.
  void addAllocation(const Block& block);
  void removeAllocation(const Block& block);

  // A block is active from its allocation until it is free for reuse, and so is its requested size.
  void removeActive(const Block& block) { changeActive(block, false); }

  // Counts a free block whose segment cannot be released because of other blocks. Does nothing for
  // others, and for blocks of expandable segments, whose free pages can always be released.
  void addInactiveSplit(const Block& block) { changeInactiveSplit(block, true); }
  void removeInactiveSplit(const Block& block) { changeInactiveSplit(block, false); }

  void countRetry() { ++stats_.num_alloc_retries; }
  void countOutOfMemory() { ++stats_.num_ooms; }
  void countWait() { ++stats_.num_sync_all_streams; }

  size_t allocatedBytes() const;
  size_t reservedBytes() const;
  size_t privatelyReservedBytes() const;

  DeviceStats all() const;

  void resetAccumulated();
  void resetPeak();

 private:
  void changeReserved(const Block& block, bool is_added);
  void changeReservedBytes(const Block& block, bool is_added);
  void changeActive(const Block& block, bool is_added);
  void changeInactiveSplit(const Block& block, bool is_added);
  void changeAllocation(const Block& block, bool is_added);

  DeviceStats stats_;
};

}  // namespace c10::openreg
