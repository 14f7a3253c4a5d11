// torch's allocator settings (PYTORCH_ALLOC_CONF), as far as this backend goes beyond c10.
//
// c10's AcceleratorAllocatorConfig parses the keys that all accelerators share. It leaves the keys
// that a backend registers to the backend's hook and refuses all others, with a ValueError.
//
// Note [Keys of CUDA's allocator]
// Where the library serves the device type CUDA, the keys of c10::cuda's CUDAAllocatorConfig are
// registered, so that programs that set them run. They choose between ways in which CUDA's driver
// is asked for memory, and there is no driver: values are checked as CUDA checks them, and change
// nothing. The exception is per_process_memory_fraction, which limits each device from its first
// use on. docs/cuda.md has a table of all keys.
//
// A request for expandable segments changes no result, so it is a warning: a device has as many
// addresses as memory, and no segment can grow.
#pragma once

namespace c10::openreg {

// Checks the settings that the environment gave. c10 calls the same check for settings that a
// program makes.
// Errors: c10's ValueError, for what it could not parse; ValueError for a bad value of a key that
// is registered here.
void checkAllocatorSettings();

// What a device may reserve at its first use, as a share of its capacity.
double initialMemoryFraction();

}  // namespace c10::openreg
