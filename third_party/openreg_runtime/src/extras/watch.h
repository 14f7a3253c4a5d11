// Watches: pinned memory with two addresses, and the protection of its pages. See
// Note [Watched memory] in openreg/watch.h.
//
// Lock order: the lock of watches comes after no other, and the arena's after it.
#pragma once

#include <openreg/watch.h>

#include <cstddef>
#include <cstdint>

#include "base/os.h"

namespace openreg {

// Allocates `size` > 0 bytes that read as zeros and can be watched; returns the host's address. 0
// if watching is off, or if such memory is not available.
uintptr_t allocate_watchable(size_t size);

// Ends an allocation of allocate_watchable(), and all watches of its bytes. Returns false, and does
// nothing, for other addresses.
bool release_watchable(uintptr_t address, size_t size);

// The offset from the host's address of watchable memory to the address that kernels use; 0 for
// every other address.
uintptr_t watchable_offset(uintptr_t address);

// Whether it is such a kernel address.
bool is_watchable_kernel_address(uintptr_t address);

// Handles a fault at watchable memory. Returns whether the access can be retried.
bool resolve_watched_fault(const os::Fault& fault);

}  // namespace openreg
