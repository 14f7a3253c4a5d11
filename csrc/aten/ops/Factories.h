// Tensors without contents, for other operator families.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::openreg {

// An uninitialised contiguous tensor on the openreg device given.
Tensor emptyOn(c10::Device device, IntArrayRef size, ScalarType dtype);

// The same with strides.
Tensor emptyStridedOn(c10::Device device, IntArrayRef size, IntArrayRef stride, ScalarType dtype);

// aten::set_.source_Storage_storage_offset.
Tensor& setStorage(Tensor& self, Storage source, int64_t storage_offset, IntArrayRef size,
                   IntArrayRef stride);

}  // namespace at::openreg
