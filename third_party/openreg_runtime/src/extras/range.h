// Ranges: what fork() needs of them. See openreg/range.h.
#pragma once

namespace openreg {

// Held over fork(), so that a child may open and close ranges. The locks are leaves.
void lock_ranges();
void unlock_ranges();

}  // namespace openreg
