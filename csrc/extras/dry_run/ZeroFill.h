// Fills what skipped work would have written.
#pragma once

#include <c10/core/TensorImpl.h>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {

// Numbers are 1 from now on, instead of 0. Before the first fill.
OPENREG_EXPORT void makeUpOnes();

// Enqueues the made-up number for all elements of a tensor, on the device or on the host. The
// caller keeps host memory alive until the stream has passed this point.
void fillMadeUp(const c10::openreg::OpenRegStream& stream, const c10::TensorImpl& tensor,
                bool is_host_memory);

// Enqueues zeros for a range of device memory, of which no dtype is known.
void fillWithZeros(const c10::openreg::OpenRegStream& stream, const void* address, size_t nbytes);

}  // namespace at::openreg
