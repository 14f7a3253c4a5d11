// Watches: pinned memory with two addresses, and the protection of its pages. See
// Note [Watched memory] in openreg/watch.h.
//
// Lock order: the lock of watches comes after no other, and the arena's after it.
#pragma once

#include <openreg/watch.h>

#include <cstddef>
#include <cstdint>

#include "extras/fault_signal.h"

namespace openreg {

// Handles a fault at watchable memory. Returns whether the access can be retried.
bool resolve_watched_fault(const os::Fault& fault);

}  // namespace openreg
