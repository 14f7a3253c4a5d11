// Resizing of storages, for other operator families.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::openreg {

// aten::set_.source_Storage_storage_offset.
Tensor& setStorage(Tensor& self, Storage source, int64_t storage_offset, IntArrayRef size,
                   IntArrayRef stride);

}  // namespace at::openreg
