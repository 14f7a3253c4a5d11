// Copies, for other operator families.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::openreg {

// self.copy_(source): any dtypes, layouts and memory formats, between openreg and CPU or between
// openreg devices. Enqueued on the current stream of the openreg device (of the source's, between
// two; both streams are ordered). From or to the host, it waits for the copy, so that any stream
// may use the result; with non_blocking, a copy from or to pinned memory does not wait, nor does
// one from a small pageable source.
Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking);

// Throws unless the kernel of copies converts the second dtype to the first.
void checkConversion(ScalarType destination, ScalarType source);

}  // namespace at::openreg
