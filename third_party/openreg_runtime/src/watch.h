// Watches: pinned memory with two addresses, and the protection of its pages. See
// Note [Watched memory] in openreg/watch.h.
//
// Lock order: the lock of watches comes after no other, and the arena's after it.
#pragma once

#include <openreg/watch.h>

#include <cstddef>
#include <cstdint>

#include "os.h"

namespace openreg {

// The host's address of `size` > 0 bytes that read as zeros and can be watched. 0 if watching is
// off, or there is no such memory to be had.
uintptr_t allocate_watchable(size_t size);

// Ends an allocation of allocate_watchable(), and all watches of its bytes. Returns false, and does
// nothing, for other addresses.
bool release_watchable(uintptr_t address, size_t size);

// What to add to the host's address of watchable memory to get the one that kernels use; 0 for
// every other address.
uintptr_t watchable_offset(uintptr_t address);

// Whether it is the sum of the two.
bool is_watchable_kernel_address(uintptr_t address);

// Deals with a fault at watchable memory. Returns whether the access can be tried again.
bool resolve_watched_fault(const os::Fault& fault);

}  // namespace openreg
