// Which block starts at an address of device memory.
//
// The context of a DataPtr is its address, as torch's raw_allocate() needs it; the table leads from
// there to the block. It has an entry for each place where a block may start, in leaves of 1 GiB of
// addresses. A leaf is made when its first block is entered and is never freed; the operating
// system gives it pages where there are blocks.
//
// Threads: any may call. An address is given from thread to thread with an order of the program's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "csrc/memory/BlockPool.h"

namespace c10::openreg {

class BlockTable {
 public:
  // Enters a block under its address.
  // Errors: std::bad_alloc, and nothing is entered.
  void add(Block* block);

  // The block that starts at the address, null if none does.
  Block* find(const void* address) const noexcept;

  // Finds the block and takes it out of the table.
  Block* take(const void* address) noexcept;

 private:
  using Entry = std::atomic<Block*>;

  // No block is smaller: see kRounding in BlockCache.cpp.
  static constexpr int kGranularityBits = 7;
  static constexpr int kLeafBits = 30;
  static constexpr int kAddressBits = 48;
  static constexpr std::size_t kLeafSize = std::size_t{1} << (kLeafBits - kGranularityBits);

  Entry* findEntry(const void* address) const noexcept;

  std::array<std::atomic<Entry*>, std::size_t{1} << (kAddressBits - kLeafBits)> leaves_{};
};

}  // namespace c10::openreg
