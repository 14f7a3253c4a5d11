// torch's allocator settings (PYTORCH_ALLOC_CONF), as far as this backend goes beyond c10.
//
// c10's AcceleratorAllocatorConfig parses the keys that all accelerators share and leaves the
// others to the backend. This one has none of its own, so it refuses them.
#pragma once

namespace c10::openreg {

// Checks the settings that the environment gave, the first time. torch calls the same check for
// settings that a program makes.
// Errors: ValueError for a key that is not c10's. A request for expandable segments, which change
// no result, is a warning: the device has as many addresses as memory, so no segment can grow.
void checkAllocatorSettings();

}  // namespace c10::openreg
