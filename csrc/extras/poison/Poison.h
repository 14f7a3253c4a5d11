// Detects reads of uninitialized memory and writes to memory that is not allocated.
//
// Note [Poison]
// With OPENREG_MEMORY_POISON=1 memory is filled with a pattern, and each allocation gets a guard
// zone at its end. Every floating type reads the pattern as NaN.
//   - A block is filled when it is allocated, as the first work on it in the order of its stream.
//     So reads of memory that was never written, or that was freed and has a new owner, show in
//     results, and a changed guard zone shows a write past the end.
//   - A new segment is filled at once; otherwise memory that was never written would read as zeros.
//   - Freed memory is not changed: until it is allocated again, another stream may legitimately use
//     it that record_stream did not name. Only a check fills it: memory that was freed before the
//     check began is unused once the check has waited for all devices. The next check shows writes
//     since then.
//
// A fill is work of its stream, and is dropped like other work if the stream fails. Only memory
// that was filled is compared. A block whose stream is capturing is not filled, because the fill
// would become part of the graph. Nor is one whose stream has been destroyed.
//
// Note [Quarantine]
// If memory is reused at once, a use after free may read values that look right. So up to
// OPENREG_MEMORY_QUARANTINE of freed memory is held back, the oldest becomes free first, and it is
// filled when it is freed, in the order of its stream. See Note [Blocks held back].
//   - Only if no other stream has pending work at the free. Otherwise, one of them may use the
//     block, legitimately or not; this depends on what precedes the next use. So the block becomes
//     free as usual, and the next owner shows the mistake.
//   - Blocks that record_stream named for other streams, and those of private pools or of streams
//     that capture or are destroyed, become free as usual.
//   - An allocation that finds no room ends the quarantine, and so does emptying the cache.
//   - A check also compares blocks in quarantine.
//
// Note [Contents of free memory]
// If a program runs twice in a process, the second run can find what the first one left at the same
// addresses: a read that comes too early then reads the right values. So fillFreeMemory() fills
// free memory with the pattern, with poison or without it.
//   - It fills the free blocks of all pools. Free pinned memory is released, by the bindings.
//   - From then on, new segments and new pinned memory are filled, so that all runs, the first one
//     included, begin with the same contents.
//   - A free block of the default pools is filled once: until it is allocated, nothing may write to
//     it. A graph writes to the free blocks of its private pool, so these are filled each time.
#pragma once

#include <vector>

#include "csrc/extras/poison/PoisonedRanges.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Whether OPENREG_MEMORY_POISON is 1.
// Errors: c10::AcceleratorError if any setting has an invalid value.
OPENREG_EXPORT bool isPoisonOn();

// Checks guard zones and free memory of all devices; see Note [Poison]. Waits for the devices.
// Needs poison. The result is ordered by device and address.
OPENREG_EXPORT std::vector<Corruption> findCorruptions();

// Fills the memory of all devices that is free, and from now on new memory, pinned memory included.
// See Note [Contents of free memory]. Existing tensors keep their contents.
// Order: all devices must be idle, and no other thread may submit work during the call.
OPENREG_EXPORT void fillFreeMemory();

}  // namespace c10::openreg
