// int1 to int7 and uint1 to uint7: one element per byte, and no CPU kernel to copy them.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::openreg {

inline bool isSubByteInteger(ScalarType type) {
  const auto is_between = [type](ScalarType first, ScalarType last) {
    return type >= first && type <= last;
  };
  return is_between(ScalarType::UInt1, ScalarType::UInt7) ||
         is_between(ScalarType::Int1, ScalarType::Int7);
}

// The tensor, or a view of its memory with a dtype that the CPU can copy.
inline Tensor copyable(const Tensor& tensor) {
  return isSubByteInteger(tensor.scalar_type()) ? tensor.view(kByte) : tensor;
}

}  // namespace at::openreg
