// A map from addresses of device memory to the blocks that start there.
//
// The context of a DataPtr is its address, as torch's raw_allocate() requires, and the table finds
// the block for it. It has an entry for each position at which a block can start, in leaves of 1
// GiB of addresses. A leaf is created with its first block and is never freed; the operating system
// backs only the pages that are used.
//
// Threads: any thread may call. The program orders the threads that pass an address to each other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "csrc/memory/BlockPool.h"

namespace c10::openreg {

class BlockTable {
 public:
  // Adds a block under its address.
  // Errors: std::bad_alloc; the table is then unchanged.
  void add(Block* block);

  // The block that starts at the address; null if there is none.
  Block* find(const void* address) const noexcept;

  // Finds the block and removes it.
  Block* take(const void* address) noexcept;

 private:
  using Entry = std::atomic<Block*>;

  // The minimum size of a block: see rounding in BlockCache.cpp.
  static constexpr int kGranularityBits = 7;
  static constexpr int kLeafBits = 30;
  static constexpr int kAddressBits = 48;
  static constexpr std::size_t kLeafSize = std::size_t{1} << (kLeafBits - kGranularityBits);

  Entry* findEntry(const void* address) const noexcept;

  std::array<std::atomic<Entry*>, std::size_t{1} << (kAddressBits - kLeafBits)> leaves_{};
};

}  // namespace c10::openreg
