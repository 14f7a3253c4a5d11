// The pattern with which poison fills memory, and the ranges of free memory that hold it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "csrc/memory/BlockPool.h"

namespace c10::openreg {

// Fills a range of memory that nothing uses, on the calling thread. `address` is one of the host.
void fillOnHost(void* address, size_t size);

// The host's address of an address of the device.
std::byte* kernelAddress(const std::byte* address);

// A range of bytes of one block that do not hold the pattern, although they were not allocated.
struct Corruption {
  DeviceIndex device;
  const void* address;                       // of the block
  size_t requested_size;                     // of its allocation; 0 for a free block
  size_t offset;                             // of the first changed byte in the block
  size_t length;                             // from the first to the last changed byte
  unsigned char value;                       // of the first
  bool is_free;                              // whether it was a free block, not a guard zone
  std::shared_ptr<GatheredContext> context;  // of its allocation, if recorded
};

// Compares what no owner may write with the pattern: the guard zone of an allocated block, or the
// whole of another one. All of the block must have been filled, and the device must be idle.
std::optional<Corruption> findCorruption(const Block& block);

// Ranges of one device's memory. Not thread-safe.
class PoisonedRanges {
 public:
  // Adds the range of a block, without filling it.
  void add(const Block& block);

  // Whether a block has bytes of these ranges.
  bool overlap(const Block& block) const;

  void clear() { end_by_begin_.clear(); }

  // Removes the range of a block that is allocated or returned to the device.
  void forget(const Block& block);

  // Compares these ranges of a free block.
  std::optional<Corruption> findCorruption(const Block& block) const;

  // Fills the rest of an unused block, on the calling thread, and adds it.
  void fill(const Block& block);

 private:
  using Ranges = std::map<const std::byte*, const std::byte*>;

  // The first range that ends behind an address.
  Ranges::const_iterator firstBehind(const std::byte* address) const;

  Ranges end_by_begin_;  // do not overlap
};

}  // namespace c10::openreg
