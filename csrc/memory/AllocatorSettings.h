// torch's allocator settings (PYTORCH_ALLOC_CONF), as far as this backend goes beyond c10.
//
// c10's AcceleratorAllocatorConfig parses the keys that all accelerators share. It leaves others to
// a backend's hook and ignores them where there is none; this backend's hook has no key of its
// own, so that c10 refuses them, with a ValueError.
//
// A request for expandable segments changes no result, so it is a warning: a device has as many
// addresses as memory, and no segment can grow.
#pragma once

namespace c10::openreg {

// Checks the settings that the environment gave. c10 calls the same check for settings that a
// program makes.
// Errors: c10's ValueError, for what it could not parse.
void checkAllocatorSettings();

}  // namespace c10::openreg
