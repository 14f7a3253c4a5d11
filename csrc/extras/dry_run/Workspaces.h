// Workspaces of cuBLAS, which torch takes from the caching allocator.
//
// Before its first product on a stream, a thread's handle of cuBLAS gets a workspace for that
// stream, which stays allocated. A thread takes a handle of a pool of the device when it first
// needs one, and gives it back when it ends, so a later thread has the workspaces of an earlier
// one. Source: aten/src/ATen/cuda/CublasHandlePool.cpp of PyTorch.
//
// A product here makes the same allocations, whose memory nothing uses.
#pragma once

#include <cstddef>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Starts to allocate workspaces of this size, before the first product of the process.
// Errors: throws if there are too many observers.
OPENREG_EXPORT void startWorkspaces(size_t nbytes);

// Frees all of them, as torch._C._cuda_clearCublasWorkspaces() does.
OPENREG_EXPORT void clearWorkspaces();

}  // namespace c10::openreg
