// What an allocator's segments hold, in c10's form, and whether it can be true.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "csrc/memory/BlockPool.h"

namespace c10::openreg {

// The first block of each segment; the others follow it.
using Segments = std::unordered_set<Block*>;

// All segments and their blocks, in address order; those of one private pool if an id other than
// {0, 0} is given. `search_count` is now, on the clock of Block::freed_at.
std::vector<CachingDeviceAllocator::SegmentInfo> describeSegments(const Segments& segments,
                                                                  MempoolId_t pool,
                                                                  uint64_t search_count);

struct SegmentTotals {
  size_t reserved = 0;
  size_t allocated = 0;
  size_t free_count = 0;  // of blocks
};

// Adds blocks up. Empty if the blocks do not tile their segments, two free ones are neighbors, or
// a pool does not hold exactly its free blocks.
std::optional<SegmentTotals> totalsOf(const Segments& segments);

}  // namespace c10::openreg
