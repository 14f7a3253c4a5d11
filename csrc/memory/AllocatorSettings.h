// The part of torch's allocator settings (PYTORCH_ALLOC_CONF) that c10 does not parse.
//
// c10's AcceleratorAllocatorConfig parses the keys that all accelerators share. It passes keys that
// a backend has registered to the backend's hook, and rejects all others with a ValueError.
//
// Note [Keys of CUDA's allocator]
// Where the library serves the device type CUDA, the keys of c10::cuda's CUDAAllocatorConfig are
// registered, so that programs that set them run. They select how memory is requested from CUDA's
// driver, which does not exist here: values are checked as CUDA checks them, and have no effect.
// The exception is per_process_memory_fraction, which limits each device from its first use on.
// docs/cuda.md has a table of all keys.
//
// A request for expandable segments does not affect results, so it is only a warning: a device has
// as many addresses as memory, and a segment cannot grow.
#pragma once

namespace c10::openreg {

// Checks the settings in the environment. c10 makes the same check for settings that a program
// changes.
// Errors: c10's ValueError for settings that it cannot parse; ValueError for an invalid value of a
// key that is registered here.
void checkAllocatorSettings();

// The fraction of its capacity that a device may reserve at its first use.
double initialMemoryFraction();

}  // namespace c10::openreg
