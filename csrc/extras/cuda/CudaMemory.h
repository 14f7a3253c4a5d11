// CUDA's allocator, as programs see it: its keys in PYTORCH_ALLOC_CONF, the size of its blocks, and
// its error.
//
// Note [Keys of CUDA's allocator]
// The keys of c10::cuda's CUDAAllocatorConfig are registered, so that programs that set them run.
// They select how memory is requested from CUDA's driver, which does not exist here: values are
// checked as CUDA checks them, and have no effect. The exception is per_process_memory_fraction,
// which limits each device from its first use on. docs/cuda.md has a table of all keys.
#pragma once

namespace at::openreg {

// Has the allocator (csrc/memory) show itself as CUDA's. Before static objects.
void installCudaMemory();

}  // namespace at::openreg
