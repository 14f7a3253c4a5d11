// Help against reads of memory nobody wrote and writes to memory nobody owns.
//
// Note [Poison]
// With OPENREG_MEMORY_POISON=1 the allocator fills memory with a pattern, and gives each allocation
// a guard zone behind what was requested. Every floating type reads the pattern as NaN.
//   - A block is filled when it is handed out, as the first work on it in the order of its stream.
//     So a result shows a read of memory that was never written, or that was freed and has a new
//     owner; and a changed guard zone shows a write past the end.
//   - So is a new segment, at once: else what nobody has written would read as zeros.
//   - Freed memory is left as it is: until it has a new owner, another stream may rightly use it
//     that record_stream did not name. Only a check() fills it. What was freed before the check
//     began is nobody's once that has waited for all devices. The next check shows who wrote since.
// A fill is work of its stream, and is dropped with the rest if that fails. Only what has been
// filled is compared.
//
// Note [Quarantine]
// Where all memory is reused at once, a use after the free may read what looks right. So up to
// OPENREG_MEMORY_QUARANTINE of freed memory is kept from being reused, the oldest goes first, and
// is filled when it is freed, in the order of its stream.
//   - Only if no other stream has work left at the free. Else one of them may use the block,
//   rightly
//     or not: whether it does so rightly depends on what comes before the next use, so the block
//     has to become free as always, and the next owner shows the mistake.
//   - Blocks that record_stream named for others, those of private pools and of streams that
//   capture
//     or are destroyed become free as always.
//   - For the statistics, a block in quarantine is one that was freed and waits for other streams.
//   - An allocation that finds no room ends the quarantine, as does emptying the cache.
//   - A check compares blocks in quarantine, too.
//
// A block whose stream is capturing is left alone: the fill would become part of the graph. So is
// one whose stream has been destroyed.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "csrc/memory/BlockPool.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Whether OPENREG_MEMORY_POISON is 1.
// Errors: c10::AcceleratorError if any setting has a bad value.
OPENREG_EXPORT bool isPoisonOn();

// Bytes that an allocation gets on top of what was requested, at least; 0 if poison is off.
size_t guardSize();

// How many bytes of freed blocks may be in quarantine; 0 if poison is off.
size_t quarantineSize();

// Whether a block that is about to be freed should go into quarantine; it has not been recorded for
// other streams.
bool shouldQuarantine(const Block& block);

// Enqueues a fill of the block on its stream, unless that captures or has been destroyed. The block
// has extras with an is_filled that is false; the fill sets it. To be called without a lock, by
// whom the block was handed out to: as every submission it waits if the stream's queue is full.
void fillOnStream(const Block& block);

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

// The free memory of one device that check() has filled. Not thread-safe.
class PoisonedRanges {
 public:
  // Forgets what of the block is known: it has an owner, or goes back to the device.
  void forget(const Block& block);

  // Compares what has been filled of a free block.
  std::optional<Corruption> findCorruption(const Block& block) const;

  // Fills the rest of it, on the calling thread. Nobody uses the block.
  void fill(const Block& block);

 private:
  std::map<const std::byte*, const std::byte*> end_by_begin_;  // of ranges that do not overlap
};

// Compares the guard zone of an allocated block with the pattern, or all of one in quarantine, if
// it has been filled. The device must be idle.
std::optional<Corruption> findCorruption(const Block& block);

}  // namespace c10::openreg
