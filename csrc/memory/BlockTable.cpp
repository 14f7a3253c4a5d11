#include "csrc/memory/BlockTable.h"

#include <cstdlib>
#include <new>

namespace c10::openreg {

void BlockTable::add(Block* block) {
  const auto address = reinterpret_cast<uintptr_t>(block->address);
  std::atomic<Entry*>& leaf = leaves_[address >> kLeafBits];
  if (leaf.load(std::memory_order_acquire) == nullptr) {
    // calloc does not touch the pages, unlike new.
    auto* made = static_cast<Entry*>(std::calloc(kLeafSize, sizeof(Entry)));
    if (made == nullptr) {
      throw std::bad_alloc();
    }
    Entry* expected = nullptr;
    if (!leaf.compare_exchange_strong(expected, made)) {
      std::free(made);
    }
  }
  findEntry(block->address)->store(block, std::memory_order_relaxed);
}

Block* BlockTable::find(const void* address) const noexcept {
  const Entry* entry = findEntry(address);
  return entry == nullptr ? nullptr : entry->load(std::memory_order_relaxed);
}

Block* BlockTable::take(const void* address) noexcept {
  Entry* entry = findEntry(address);
  return entry == nullptr ? nullptr : entry->exchange(nullptr, std::memory_order_relaxed);
}

BlockTable::Entry* BlockTable::findEntry(const void* address) const noexcept {
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (number >> kAddressBits != 0 || number % (uintptr_t{1} << kGranularityBits) != 0) {
    return nullptr;
  }
  Entry* leaf = leaves_[number >> kLeafBits].load(std::memory_order_acquire);
  return leaf == nullptr ? nullptr : leaf + (number >> kGranularityBits) % kLeafSize;
}

}  // namespace c10::openreg
