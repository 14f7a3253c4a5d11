// Uninitialized tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// An uninitialized tensor on the current device, contiguous in the memory format. Made without the
// dispatcher, and never filled; aten::empty is in csrc/aten/ops/Factories.cpp.
OPENREG_EXPORT Tensor emptyOnCurrentDevice(
    IntArrayRef sizes, ScalarType dtype, std::optional<MemoryFormat> memory_format = std::nullopt);

// The same with strides.
OPENREG_EXPORT Tensor emptyStridedOnCurrentDevice(IntArrayRef sizes, IntArrayRef strides,
                                                  ScalarType dtype);

}  // namespace at::openreg
