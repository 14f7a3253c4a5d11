// Help against reads of memory nobody wrote and writes to memory nobody owns.
//
// Note [Poison]
// With OPENREG_MEMORY_POISON=1 the allocator fills fresh and freed blocks with a pattern, in
// stream order, and gives each allocation a guard zone behind what was requested. Every floating
// type reads the pattern as NaN, so that a result shows a read of memory that was never written
// or has been freed. A changed guard zone shows a write past the end; a changed free block, a
// write after free.
//
// A block whose stream is capturing is left alone: the fill would become part of the graph. So is
// one whose stream has been destroyed.
#pragma once

#include <cstddef>
#include <optional>

#include "csrc/memory/BlockPool.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Whether OPENREG_MEMORY_POISON is 1.
// Errors: c10::AcceleratorError if any setting has a bad value.
OPENREG_EXPORT bool isPoisonOn();

// Bytes that an allocation gets on top of what was requested, at least; 0 if poison is off.
size_t guardSize();

// Fills a block with the pattern on its stream, if poison is on, and notes whether it did.
void poison(Block& block);

// A stretch of bytes of one block that do not hold the pattern, though nobody may have written
// there.
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

// Compares what the block's owner may not write with the pattern. The device must be idle.
std::optional<Corruption> findCorruption(const Block& block);

}  // namespace c10::openreg
