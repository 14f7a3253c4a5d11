// Tensors without contents, for other operator families.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::openreg {

// An uninitialised contiguous tensor on the openreg device given.
Tensor emptyOn(c10::Device device, IntArrayRef size, ScalarType dtype);

// The same with strides.
Tensor emptyStridedOn(c10::Device device, IntArrayRef size, IntArrayRef stride, ScalarType dtype);

}  // namespace at::openreg
