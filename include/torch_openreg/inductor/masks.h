// Fast loads of bool tensors as masks of vectorized kernels. torch's headers convert them lane by
// lane, through memory, which takes more than nine tenths of the time of relu with its mask. This
// header converts whole vectors; the values are the same.
//
// This text becomes part of the source of kernels with masks, after torch's headers.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)

// For masks of `n` vectors of `type`, whose lanes are as wide as `integer`.
#define OPENREG_MASK_CONVERSIONS(type, n, integer)                                            \
  template <>                                                                                 \
  inline void VecMask<type, n>::store(bool* values, int count) {                              \
    __at_align__ integer lanes[size()];                                                       \
    uint8_t bytes[size()];                                                                    \
    mask_.store(lanes);                                                                       \
    for (int i = 0; i < size(); ++i) {                                                        \
      bytes[i] = lanes[i] != 0;                                                               \
    }                                                                                         \
    std::memcpy(values, bytes, count);                                                        \
  }                                                                                           \
  template <>                                                                                 \
  template <>                                                                                 \
  inline VecMask<type, n> VecMask<type, n>::from<const bool>(const bool* values, int count) { \
    uint8_t bytes[size()] = {};                                                               \
    std::memcpy(bytes, values, count);                                                        \
    __at_align__ integer lanes[size()];                                                       \
    for (int i = 0; i < size(); ++i) {                                                        \
      lanes[i] = bytes[i] != 0 ? -1 : 0;                                                      \
    }                                                                                         \
    return VectorizedN<type, n>::loadu(lanes);                                                \
  }

namespace at::vec {
inline namespace CPU_CAPABILITY {

OPENREG_MASK_CONVERSIONS(float, 1, int32_t)
OPENREG_MASK_CONVERSIONS(float, 2, int32_t)
OPENREG_MASK_CONVERSIONS(int32_t, 1, int32_t)
OPENREG_MASK_CONVERSIONS(double, 2, int64_t)
OPENREG_MASK_CONVERSIONS(int64_t, 2, int64_t)

}  // namespace CPU_CAPABILITY
}  // namespace at::vec

#undef OPENREG_MASK_CONVERSIONS
#endif
