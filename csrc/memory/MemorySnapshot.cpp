#include "csrc/memory/MemorySnapshot.h"

#include <algorithm>

namespace c10::openreg {
namespace {

using CachingDeviceAllocator::SegmentInfo;

// Of an expandable segment, a range that has memory without a gap.
SegmentInfo describe(const Block& first, uint64_t search_count) {
  SegmentInfo segment;
  segment.device = first.device;
  segment.address = reinterpret_cast<size_t>(first.address);
  segment.stream = reinterpret_cast<void*>(first.stream->id());
  segment.is_large = !first.pool->isSmall();
  segment.owner_private_pool_id = first.pool->id();
  segment.is_expandable = first.is_expandable;
  segment.context_when_allocated = first.segmentContext();
  for (const Block* block = &first; block != nullptr && !block->is_unmapped; block = block->next) {
    const bool is_active = !block->isFree();
    segment.total_size += block->size;
    segment.requested_size += block->requested_size;
    segment.allocated_size += block->is_allocated ? block->size : 0;
    segment.active_size += is_active ? block->size : 0;
    segment.blocks.push_back({block->size, block->requested_size, 0, block->is_allocated, is_active,
                              block->allocationContext()});
    if (!is_active) {
      segment.blocks.back().gc_counter = static_cast<int32_t>(search_count - block->freed_at);
    }
  }
  return segment;
}

}  // namespace

std::vector<SegmentInfo> describeSegments(const Segments& segments, MempoolId_t pool,
                                          uint64_t search_count) {
  std::vector<SegmentInfo> described;
  for (const Block* first : segments) {
    if (pool != MempoolId_t{0, 0} && first->pool->id() != pool) {
      continue;
    }
    for (const Block* block = first; block != nullptr; block = block->next) {
      if (!block->is_unmapped && (block == first || block->previous->is_unmapped)) {
        described.push_back(describe(*block, search_count));
      }
    }
  }
  std::sort(described.begin(), described.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return described;
}

std::optional<SegmentTotals> totalsOf(const Segments& segments) {
  SegmentTotals totals;
  for (Block* first : segments) {
    if (first->previous != nullptr) {
      return std::nullopt;
    }
    for (Block* block = first; block != nullptr; block = block->next) {
      totals.reserved += block->is_unmapped ? 0 : block->size;
      totals.allocated += block->is_allocated ? block->size : 0;
      totals.free_count += block->isFree() ? 1 : 0;
      const Block* next = block->next;
      if (next != nullptr &&
          (next->previous != block || next->address != block->address + block->size ||
           next->pool != block->pool || (next->isFree() && block->isFree()))) {
        return std::nullopt;
      }
      if (block->isFree() != block->pool->free_blocks.contains(block)) {
        return std::nullopt;
      }
    }
  }
  return totals;
}

}  // namespace c10::openreg
