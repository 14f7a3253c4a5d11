// Workspaces of CUDA's kernels, which torch takes from the caching allocator. Nothing uses the
// memory here: what counts is that it is allocated.
//
// Some kernels have memory for a while; see TemporaryMemory.h. A workspace of cuBLAS stays. Before
// its first product on a stream, a thread's handle of cuBLAS gets one for that stream. A thread
// takes a handle of a pool of the device when it first needs one, and gives it back when it ends,
// so a later thread has the workspaces of an earlier one. Source:
// aten/src/ATen/cuda/CublasHandlePool.cpp of PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Starts to allocate workspaces, before the first kernel of the process. Those of cuBLAS have this
// size; 0: it has none. `multiprocessors` is the number that the GPU has.
// Errors: throws if there are too many observers.
OPENREG_EXPORT void startWorkspaces(size_t cublas_size, int64_t multiprocessors);

// Frees those of cuBLAS, as torch._C._cuda_clearCublasWorkspaces() does.
OPENREG_EXPORT void clearWorkspaces();

}  // namespace c10::openreg
