// Fills what skipped work would have written.
#pragma once

#include <c10/core/TensorImpl.h>

#include "torch_openreg/core/Stream.h"

namespace at::openreg {

// Enqueues zeros for all elements of a tensor, on the device or on the host. The caller keeps host
// memory alive until the stream has passed this point.
void fillWithZeros(const c10::openreg::OpenRegStream& stream, const c10::TensorImpl& tensor,
                   bool is_host_memory);

// The same for a range of device memory.
void fillWithZeros(const c10::openreg::OpenRegStream& stream, const void* address, size_t nbytes);

}  // namespace at::openreg
