// The state of an allocator's segments, in c10's form, and a check of its consistency.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "csrc/memory/BlockPool.h"

namespace c10::openreg {

// The first block of each segment; the others are linked to it.
using Segments = std::unordered_set<Block*>;

// All segments and their blocks, in address order; only those of one private pool unless the id is
// {0, 0}. `search_count` is the current time of Block::freed_at's clock.
std::vector<CachingDeviceAllocator::SegmentInfo> describeSegments(const Segments& segments,
                                                                  MempoolId_t pool,
                                                                  uint64_t search_count);

struct SegmentTotals {
  size_t reserved = 0;
  size_t allocated = 0;
  size_t free_count = 0;  // of blocks
};

// Sums up the blocks. Empty if the blocks do not tile their segments, if two free ones are
// adjacent, or if a pool does not hold exactly its free blocks.
std::optional<SegmentTotals> totalsOf(const Segments& segments);

}  // namespace c10::openreg
