// Blocks of device memory, and the pools of free blocks.
//
// Glossary
//   segment   the memory of one orMalloc call; never moves, and is released as a whole. An
//   expandable
//             one is a range of reserved addresses, which has memory where it is mapped
//   block     a part of a segment, used by one tensor storage or free. The blocks of a segment
//             form a doubly linked list in address order
//   pool      all free blocks of one class: small (requests up to kSmallSize) or large. A block
//             stays in the class for which it was created
//   private   a separate small and large pool for one user: a graph, whose addresses must not be
//   pool      reused between replays, or a program's MemPool
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_set>

#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

struct BlockPool;

// Members that few blocks need.
struct BlockExtras {
  std::unordered_set<OpenRegStream> used_on{};            // other streams that record_stream named
  std::shared_ptr<GatheredContext> allocation_context{};  // stack of the allocation, if recorded
  std::shared_ptr<GatheredContext> segment_context{};     // of the first block of a segment
};

// There is one for each live tensor, so it is kept small.
struct Block {
  std::byte* address = nullptr;
  size_t size = 0;
  size_t requested_size = 0;  // as requested, until the block is free
  BlockPool* pool = nullptr;
  const OpenRegStream* stream = nullptr;  // may reuse its memory without waiting
  Block* previous = nullptr;              // in the same segment
  Block* next = nullptr;
  uint64_t freed_at = 0;  // the pools' search count when it became free
  std::unique_ptr<BlockExtras> extras;
  int pending_uses = 0;  // by other streams, which must end before it may be reused
  DeviceIndex device = 0;
  bool is_allocated = false;
  bool is_oversize_allocation = false;  // as counted by the statistics,
  bool is_oversize_segment = false;     // whatever the settings are later
  bool is_expandable = false;           // of an expandable segment
  bool is_unmapped = false;             // has addresses only, or is about to lose its memory

  bool isSplit() const { return previous != nullptr || next != nullptr; }
  // Free for reuse: neither in use nor waiting for another stream.
  bool isFree() const { return !is_allocated && pending_uses == 0 && !is_unmapped; }

  // Whether record_stream named other streams.
  bool hasOtherStreams() const { return extras != nullptr && !extras->used_on.empty(); }

  BlockExtras& findOrCreateExtras() {
    if (extras == nullptr) {
      extras = std::make_unique<BlockExtras>();
    }
    return *extras;
  }

  std::shared_ptr<GatheredContext> allocationContext() const {
    return extras == nullptr ? nullptr : extras->allocation_context;
  }
  std::shared_ptr<GatheredContext> segmentContext() const {
    return extras == nullptr ? nullptr : extras->segment_context;
  }
};

static_assert(sizeof(Block) <= 88, "a heap allocation of 96 bytes, its header included");

// The free blocks of a pool, ordered by stream, then size, then address.
//
// When a block is split or merged, it leaves the set and another one enters it, in most cases at
// the same position.
class FreeBlocks {
  using Key = std::tuple<uintptr_t, size_t, uintptr_t>;

  struct Order {
    using is_transparent = void;
    static Key keyOf(const Block* block) {
      return {reinterpret_cast<uintptr_t>(block->stream->stream()), block->size,
              reinterpret_cast<uintptr_t>(block->address)};
    }
    static const Key& keyOf(const Key& key) { return key; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return keyOf(a) < keyOf(b);
    }
  };

  using Set = std::set<Block*, Order>;

 public:
  // The position of a block. Stays valid until that block is erased.
  using Position = Set::const_iterator;

  // The position of the smallest block of the stream with at least `size` bytes; of equal ones,
  // that with the lowest address. Nothing if there is none.
  std::optional<Position> bestFit(const OpenRegStream& stream, size_t size) const {
    const Position found =
        blocks_.lower_bound(Key{reinterpret_cast<uintptr_t>(stream.stream()), size, 0});
    return found != blocks_.end() && *(*found)->stream == stream ? std::optional(found)
                                                                 : std::nullopt;
  }

  // For a block that is in the set.
  Position find(Block* block) const { return blocks_.find(block); }

  void insert(Block* block) {
    if (spare_node_.empty()) {
      blocks_.insert(block);
    } else {
      spare_node_.value() = block;
      blocks_.insert(std::move(spare_node_));
    }
  }

  // The block may have changed since it was found.
  void erase(Position place) { spare_node_ = blocks_.extract(place); }

  // Erases the block, which may have changed since it was found, and inserts another.
  void replace(Position place, Block* block) {
    const Position next = std::next(place);
    const bool belongs_here = (place == blocks_.begin() || Order()(*std::prev(place), block)) &&
                              (next == blocks_.end() || Order()(block, *next));
    if (belongs_here) {
      const_cast<Block*&>(*place) = block;
    } else {
      erase(place);
      insert(block);
    }
  }

  bool contains(Block* block) const { return blocks_.contains(block); }
  bool isOrdered() const { return std::is_sorted(begin(), end(), Order()); }
  size_t size() const { return blocks_.size(); }
  Set::const_iterator begin() const { return blocks_.begin(); }
  Set::const_iterator end() const { return blocks_.end(); }

 private:
  Set blocks_;
  Set::node_type spare_node_;
};

struct PrivatePool;

struct BlockPool {
  BlockPool(CachingAllocator::StatType type, PrivatePool* owner) : type(type), owner(owner) {}

  FreeBlocks free_blocks;
  const CachingAllocator::StatType type;
  PrivatePool* const owner;  // null: the default pools

  bool isSmall() const { return type == CachingAllocator::StatType::SMALL_POOL; }
  MempoolId_t id() const;
};

inline size_t roundUp(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// The options of a program's private pool.
struct PoolOptions {
  bool serves_others = false;  // for allocations that would otherwise run out of memory
  bool is_split = true;        // false: a block is a whole segment
};

struct PrivatePool {
  explicit PrivatePool(MempoolId_t id) : id(id) {}

  const MempoolId_t id;
  int use_count = 0;         // at 0 its memory may be released
  size_t segment_count = 0;  // if 0 as well, it may be deleted
  PoolOptions options;
  BlockPool small{CachingAllocator::StatType::SMALL_POOL, this};
  BlockPool large{CachingAllocator::StatType::LARGE_POOL, this};
};

inline MempoolId_t BlockPool::id() const {
  return owner == nullptr ? MempoolId_t{0, 0} : owner->id;
}

}  // namespace c10::openreg
