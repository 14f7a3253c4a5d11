// Segments that grow: ranges of reserved addresses, which have memory where it is mapped.
//
// Note [Expandable segments]
// With the setting expandable_segments:True, a stream has one segment for its small blocks and one
// for its large ones, for as long as it has addresses left: 9/8 of the device's memory for large
// blocks, 1/8 for small ones. It grows where it has room at the lowest address, free blocks next to
// unmapped addresses included, by pages: of 2 MiB for small blocks, of large_segment_size (20 MiB)
// for large ones. What is released is whole free pages, wherever they are. A segment without memory
// ends. The rules are those of c10/cuda/CUDACachingAllocator.cpp, so that a program reserves what
// it would reserve on a GPU.
//
// Blocks of addresses without memory are linked to the other blocks of their segment, and are in no
// pool. If a machine has too few addresses (`ulimit -v`), segments are as without the setting.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>

#include "csrc/memory/BlockPool.h"

namespace c10::openreg {

// Whether new segments are expandable: the current value of torch's setting.
bool areSegmentsExpandable();

// A device's expandable segments, and their blocks without memory. Not thread-safe.
class ExpandableSegments {
 public:
  // The first of adjacent blocks, free or unmapped, that together have room for `size` bytes, at
  // the lowest address of the pool and stream; null if there are none.
  Block* findRoom(const BlockPool& pool, const OpenRegStream& stream, size_t size) const;

  // Reserves the addresses of a new segment on the current device. Stores their start and size.
  // Returns false if there are not as many.
  bool create(const BlockPool& pool, size_t device_memory, Block& block);

  // Ends the reservation of a segment, given its only block.
  void release(const Block& block);

  void insert(Block* unmapped) { unmapped_.insert(unmapped); }
  void erase(Block* unmapped) { unmapped_.erase(unmapped); }

  // `size` rounded up to whole pages of the block's segment.
  size_t roundUpToPages(const Block& block, size_t size) const;

  struct Pages {
    size_t offset;  // from the start of the block
    size_t size;
  };

  // The whole pages in a block; none if it has no whole page.
  std::optional<Pages> pagesIn(const Block& block) const;

 private:
  struct ByAddress {
    bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
  };

  struct PageGrid {
    std::byte* begin;
    size_t page;
  };
  PageGrid gridOf(const Block& block) const;

  std::map<std::byte*, size_t> pages_;  // the size of a segment's pages, by its address
  std::set<Block*, ByAddress> unmapped_;
};

}  // namespace c10::openreg
