// Detects reads of uninitialized memory and writes to memory that is not allocated.
//
// Note [Poison]
// With OPENREG_MEMORY_POISON=1 the allocator fills memory with a pattern, and adds a guard zone to
// the end of each allocation. Every floating type reads the pattern as NaN.
//   - A block is filled when it is allocated, as the first work on it in the order of its stream.
//     So reads of memory that was never written, or that was freed and has a new owner, show in
//     results, and a changed guard zone shows a write past the end.
//   - A new segment is filled at once; otherwise memory that was never written would read as zeros.
//   - Freed memory is not changed: until it is allocated again, another stream may legitimately use
//     it that record_stream did not name. Only a check() fills it: memory that was freed before the
//     check began is unused once the check has waited for all devices. The next check shows writes
//     since then.
//
// A fill is work of its stream, and is dropped like other work if the stream fails. Only memory
// that was filled is compared.
//
// Note [Quarantine]
// If memory is reused at once, a use after free may read values that look right. So up to
// OPENREG_MEMORY_QUARANTINE of freed memory is not reused, the oldest is released first, and it is
// filled when it is freed, in the order of its stream.
//   - Only if no other stream has pending work at the free. Otherwise, one of them may use the
//     block, legitimately or not; this depends on what precedes the next use. So the block becomes
//     free as usual, and the next owner shows the mistake.
//   - Blocks that record_stream named for other streams, and those of private pools or of streams
//     that capture or are destroyed, become free as usual.
//   - The statistics count a block in quarantine as freed and waiting for other streams.
//   - An allocation that finds no room ends the quarantine, and so does emptying the cache.
//   - A check also compares blocks in quarantine.
//
// A block whose stream is capturing is not filled, because the fill would become part of the graph.
// Nor is one whose stream has been destroyed.
//
// Note [Contents of free memory]
// If a program runs twice in a process, the second run can find what the first one left at the same
// addresses: a read that comes too early then reads the right values. So fillFreeMemory(), in
// Allocator.h, fills free memory with the pattern, with poison or without it.
//   - It fills the free blocks of all pools. Free pinned memory is released, by the bindings.
//   - From then on, new segments and new pinned memory are filled, so that all runs, the first one
//     included, begin with the same contents.
//   - A free block of the default pools is filled once: until it is allocated, nothing may write to
//     it. A graph writes to the free blocks of its private pool, so these are filled each time.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "csrc/memory/BlockPool.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Whether OPENREG_MEMORY_POISON is 1.
// Errors: c10::AcceleratorError if any setting has an invalid value.
OPENREG_EXPORT bool isPoisonOn();

// Whether new segments and new pinned memory are filled: with poison, or after fillNewMemory().
bool isNewMemoryFilled();
void fillNewMemory();

// Fills a range of memory that nothing uses, on the calling thread. `address` is one of the host.
void fillOnHost(void* address, size_t size);

// The minimum size of the guard zone that is added to a requested size; 0 if poison is off.
size_t guardSize();

// The number of bytes of freed blocks that may be in quarantine; 0 if poison is off.
size_t quarantineSize();

// Whether a block that is about to be freed qualifies for the quarantine. It must not have been
// recorded for other streams.
bool shouldQuarantine(const Block& block);

// Enqueues a fill of the block on its stream, unless the stream captures or has been destroyed. The
// block must have extras with an is_filled that is false; the fill sets it. Call without a lock
// held, as the owner of the block: like every submission, it waits if the stream's queue is full.
void fillOnStream(const Block& block);

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

// The ranges of one device's free memory that check() or fillFreeMemory() has filled, and new
// segments. Not thread-safe.
class PoisonedRanges {
 public:
  // Forgets a block that is allocated or released to the device.
  void forget(const Block& block);

  // Compares the filled ranges of a free block.
  std::optional<Corruption> findCorruption(const Block& block) const;

  // Fills the rest of an unused block, on the calling thread.
  void fill(const Block& block);

  // Fills all of an unused block to which others may write, on the calling thread.
  static void fillAll(const Block& block);

 private:
  std::map<const std::byte*, const std::byte*> end_by_begin_;  // of ranges that do not overlap
};

// Compares the guard zone of an allocated block with the pattern, or the whole of a block in
// quarantine, if it was filled. The device must be idle.
std::optional<Corruption> findCorruption(const Block& block);

}  // namespace c10::openreg
