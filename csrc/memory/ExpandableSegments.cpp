#include "csrc/memory/ExpandableSegments.h"

#include <c10/core/AllocatorConfig.h>
#include <openreg/openreg.h>

#include <iterator>
#include <tuple>

#include "torch_openreg/core/DeviceKeys.h"

namespace c10::openreg {
namespace {

using CachingAllocator::AcceleratorAllocatorConfig;

size_t pageOf(const BlockPool& pool) {
  return pool.isSmall() ? CachingAllocator::kSmallBuffer
                        : roundUp(AcceleratorAllocatorConfig::large_segment_size(),
                                  OPENREG_MAPPING_GRANULARITY);
}

// No other stream uses it, and it is not being unmapped.
bool isRoom(const Block* block) {
  return block != nullptr && !block->is_allocated && block->pending_uses == 0;
}

bool hasRoom(const Block* block, size_t size) {
  size_t found = 0;
  for (; found < size && isRoom(block); block = block->next) {
    found += block->size;
  }
  return found >= size;
}

}  // namespace

bool areSegmentsExpandable() { return AcceleratorAllocatorConfig::use_expandable_segments(); }

Block* ExpandableSegments::findRoom(const BlockPool& pool, const OpenRegStream& stream,
                                    size_t size) const {
  for (Block* block : unmapped_) {
    if (block->pool != &pool || *block->stream != stream) {
      continue;
    }
    Block* const first = isRoom(block->previous) ? block->previous : block;
    if (hasRoom(first, size)) {
      return first;
    }
  }
  return nullptr;
}

bool ExpandableSegments::create(const BlockPool& pool, size_t device_memory, Block& block) {
  const size_t page = pageOf(pool);
  const size_t part = device_memory / 8;
  const size_t size = roundUp(pool.isSmall() ? part : device_memory + part, page);
  void* address = nullptr;
  const orError_t error = orMemAddressReserve(&address, size);
  if (error == orErrorMemoryAllocation) {
    std::ignore = orGetLastError();
    return false;
  }
  OPENREG_CHECK_RESULT(error, "orMemAddressReserve");
  block.address = static_cast<std::byte*>(address);
  block.size = size;
  pages_.emplace(block.address, page);
  return true;
}

void ExpandableSegments::release(const Block& block) {
  pages_.erase(block.address);
  OPENREG_CHECK(orMemAddressFree(block.address));
}

ExpandableSegments::PageGrid ExpandableSegments::gridOf(const Block& block) const {
  const auto& [begin, page] = *std::prev(pages_.upper_bound(block.address));
  return {begin, page};
}

size_t ExpandableSegments::roundUpToPages(const Block& block, size_t size) const {
  return roundUp(size, gridOf(block).page);
}

std::optional<ExpandableSegments::Pages> ExpandableSegments::pagesIn(const Block& block) const {
  const auto [begin, page] = gridOf(block);
  const auto from = static_cast<size_t>(block.address - begin);
  const size_t first = roundUp(from, page);
  const size_t end = (from + block.size) / page * page;
  return first < end ? std::optional(Pages{first - from, end - first}) : std::nullopt;
}

}  // namespace c10::openreg
