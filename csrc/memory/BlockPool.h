// Blocks of device memory and the pools that free ones wait in.
//
// Glossary
//   segment   what one orMalloc returned; never moves, goes back whole
//   block     a part of a segment, used by one tensor storage or free. The blocks of a segment
//             form a doubly linked list in address order
//   pool      all free blocks of one class: small (requests up to kSmallSize) or large. A block
//             stays in the class it was cut for
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <functional>
#include <set>
#include <tuple>
#include <unordered_set>

#include "csrc/core/Stream.h"

namespace c10::openreg {

struct BlockPool;

struct Block {
  DeviceIndex device;
  OpenRegStream stream;  // its memory may be reused on this stream without waiting
  size_t size = 0;
  size_t requested_size = 0;  // what the caller asked for; 0 while free
  BlockPool* pool = nullptr;
  std::byte* address = nullptr;
  Block* previous = nullptr;  // in the same segment
  Block* next = nullptr;
  bool is_allocated = false;
  int pending_events = 0;  // other streams that must pass before it may be reused
  std::unordered_set<OpenRegStream> used_on{};  // other streams that record_stream named

  bool isSplit() const { return previous != nullptr || next != nullptr; }
  // Free for reuse: neither in use nor waiting for another stream.
  bool isFree() const { return !is_allocated && pending_events == 0; }
};

// Best fit within a stream: ordered by stream, then size, then address.
struct BlockOrder {
  bool operator()(const Block* a, const Block* b) const {
    const auto key = [](const Block* block) {
      return std::tuple(reinterpret_cast<uintptr_t>(block->stream.handle()), block->size,
                        reinterpret_cast<uintptr_t>(block->address));
    };
    return key(a) < key(b);
  }
};

struct BlockPool {
  explicit BlockPool(CachingAllocator::StatType type) : type(type) {}

  std::set<Block*, BlockOrder> free_blocks;
  const CachingAllocator::StatType type;

  bool isSmall() const { return type == CachingAllocator::StatType::SMALL_POOL; }
};

}  // namespace c10::openreg
