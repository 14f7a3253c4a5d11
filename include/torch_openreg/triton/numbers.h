// Numbers in generated kernels: formats that are narrower than a float, integer operations without
// undefined results, and functions that compilers can vectorize. A float in a register stands for a
// number of a narrow format, and is rounded after each operation.
#pragma once

#include <stdint.h>

namespace openreg_triton {

template <typename To, typename From>
static inline To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "expected types of the same size");
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

// Formats in memory. Each has the type of its bits, the type in registers, and the conversions.

template <typename T>
struct Plain {
  using Bits = T;
  using Register = T;
  static inline T decode(T value) { return value; }
  static inline T encode(T value) { return value; }
};

// A binary format with a sign, `kMantissa` bits of mantissa and an exponent with the bias `kBias`.
// Codes above `kLargest` do not arise: results saturate there, at infinity if that is its code.
// Without `kHasNegativeZero`, the code of a negative zero is NaN, the only one.
template <typename BitsType, int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan,
          bool kHasNegativeZero = true>
struct Narrow {
  using Bits = BitsType;
  using Register = float;
  static constexpr uint32_t kSign = 1u << (8 * sizeof(Bits) - 1);

  // The code of a magnitude that is not NaN, before it saturates. Halves are rounded to even.
  static inline uint32_t magnitude(uint32_t u) {
    constexpr int kShift = 23 - kMantissa;
    const uint32_t normal = ((u + ((1u << (kShift - 1)) - 1) + ((u >> kShift) & 1)) >> kShift) -
                            (static_cast<uint32_t>(127 - kBias) << kMantissa);
    // The sum has the unit of this format's subnormal numbers as that of its last place.
    constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 24 - kBias - kMantissa) << 23;
    const uint32_t subnormal =
        bits_of<uint32_t>(bits_of<float>(u) + bits_of<float>(kMagic)) - kMagic;
    const uint32_t code = u < (static_cast<uint32_t>(128 - kBias) << 23) ? subnormal : normal;
    return code < kLargest ? code : kLargest;
  }

  static inline Bits encode(float value) {
    const uint32_t u = bits_of<uint32_t>(value);
    const uint32_t absolute = u & 0x7fffffffu;
    const uint32_t sign = (u >> 31) * kSign;
    uint32_t code = magnitude(absolute);
    if constexpr (kHasNegativeZero) {
      code = absolute > 0x7f800000u ? kNan : code;
      return static_cast<Bits>(code | sign);
    } else {
      code |= code != 0 ? sign : 0;
      return static_cast<Bits>(absolute > 0x7f800000u ? kNan : code);
    }
  }

  static inline float decode(Bits bits) {
    const uint32_t code = bits & (kSign - 1);
    const uint32_t sign = static_cast<uint32_t>(bits & kSign) << (32 - 8 * sizeof(Bits));
    constexpr uint32_t kScale = static_cast<uint32_t>(127 + 127 - kBias) << 23;
    const float scaled = bits_of<float>(code << (23 - kMantissa)) * bits_of<float>(kScale);
    uint32_t u = bits_of<uint32_t>(scaled);
    if constexpr (!kHasNegativeZero) {
      u = bits == kNan ? 0x7fc00000u : u;
    } else if constexpr (kLargest + 1 == kNan) {
      u = code == kNan ? 0x7fc00000u : u;
    } else {
      u = code >= kLargest ? 0x7f800000u | (code << (23 - kMantissa)) : u;
    }
    return bits_of<float>(u | sign);
  }
};

using f16 = Narrow<uint16_t, 10, 15, 0x7c00, 0x7e00>;

struct bf16 {
  using Bits = uint16_t;
  using Register = float;
  static inline uint16_t encode(float value) {
    const uint32_t u = bits_of<uint32_t>(value);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
  }
  static inline float decode(uint16_t bits) {
    return bits_of<float>(static_cast<uint32_t>(bits) << 16);
  }
};

using f8E4M3FN = Narrow<uint8_t, 3, 7, 0x7e, 0x7f>;
using f8E4M3FNUZ = Narrow<uint8_t, 3, 8, 0x7f, 0x80, false>;
using f8E5M2FNUZ = Narrow<uint8_t, 2, 16, 0x7f, 0x80, false>;

// Saturates at the largest finite number, as CUDA's conversions do, but reads infinities.
struct f8E5M2 {
  using Bits = uint8_t;
  using Register = float;
  static inline uint8_t encode(float value) {
    return Narrow<uint8_t, 2, 15, 0x7b, 0x7f>::encode(value);
  }
  static inline float decode(uint8_t bits) {
    return f16::decode(static_cast<uint16_t>(static_cast<uint32_t>(bits) << 8));
  }
};

template <typename Format>
static inline float round_to(float value) {
  return Format::decode(Format::encode(value));
}

template <>
inline float round_to<bf16>(float value) {
  const uint32_t u = bits_of<uint32_t>(value);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) & 0xffff0000u;
  return (u & 0x7fffffffu) > 0x7f800000u ? value : bits_of<float>(rounded);
}

template <>
inline float round_to<f16>(float value) {
  const uint32_t u = bits_of<uint32_t>(value);
  const uint32_t absolute = u & 0x7fffffffu;
  const uint32_t normal = (absolute + 0xfffu + ((absolute >> 13) & 1)) & ~0x1fffu;
  const float subnormal = (bits_of<float>(absolute) + 0.5f) - 0.5f;
  uint32_t result = absolute < 0x38800000u ? bits_of<uint32_t>(subnormal) : normal;
  result = result >= 0x47800000u ? 0x7f800000u : result;
  result = absolute > 0x7f800000u ? absolute : result;
  return bits_of<float>(result | (u & 0x80000000u));
}

// Four bits: a sign, two of the exponent, one of the mantissa.
static inline float decode_e2m1(int32_t bits) {
  const uint32_t exponent = (uint32_t(bits) >> 1) & 3;
  const float mantissa = bits & 1 ? 1.5f : 1.0f;
  const float normal = mantissa * float((1u << exponent) >> 1);
  const float magnitude = exponent == 0 ? (bits & 1 ? 0.5f : 0.0f) : normal;
  return bits & 8 ? -magnitude : magnitude;
}

// A power of two: an exponent alone.
static inline float decode_e8m0(int8_t bits) {
  const uint32_t exponent = uint8_t(bits);
  return bits_of<float>(exponent == 0     ? 0x00400000u
                        : exponent == 255 ? 0x7fc00000u
                                          : exponent << 23);
}

// Rounds without the nearest: for fp_to_fp with a rounding mode.
template <typename Format>
static inline float truncate_to(float value) {
  constexpr uint32_t kDropped = sizeof(typename Format::Bits) == 2 ? 0xffffu : 0x1fffu;
  const uint32_t u = bits_of<uint32_t>(value);
  return (u & 0x7fffffffu) > 0x7f800000u ? value : bits_of<float>(u & ~kDropped);
}

// Types of integers by their sizes, with and without a sign.

template <typename T>
struct Signs;
template <>
struct Signs<bool> {
  using Unsigned = bool;
};
#define OPENREG_TRITON_SIGNS(size, wide) \
  template <>                            \
  struct Signs<int##size##_t> {          \
    using Unsigned = uint##size##_t;     \
    using Wide = wide;                   \
    using UnsignedWide = unsigned wide;  \
  };
OPENREG_TRITON_SIGNS(8, int)
OPENREG_TRITON_SIGNS(16, int)
OPENREG_TRITON_SIGNS(32, long)
OPENREG_TRITON_SIGNS(64, __int128)
#undef OPENREG_TRITON_SIGNS

template <typename T>
using Unsigned = typename Signs<T>::Unsigned;

// Divisions by zero and of the least number by -1 raise a signal on x86. Lanes that a mask leaves
// out do both. Their results are any.

template <typename T>
static inline T divide(T a, T b) {
  return b == 0 ? T(-1) : b == T(-1) ? T(-Unsigned<T>(a)) : T(a / b);
}
template <typename T>
static inline T remainder(T a, T b) {
  return b == 0 ? a : b == T(-1) ? T(0) : T(a % b);
}
template <typename T>
static inline T divide_unsigned(T a, T b) {
  return b == 0 ? T(-1) : T(Unsigned<T>(a) / Unsigned<T>(b));
}
template <typename T>
static inline T remainder_unsigned(T a, T b) {
  return b == 0 ? a : T(Unsigned<T>(a) % Unsigned<T>(b));
}
template <typename T>
static inline T divide_floor(T a, T b) {
  const T quotient = divide(a, b);
  return quotient - (b != 0 && quotient * b != a && ((a < 0) != (b < 0)));
}
template <typename T>
static inline T divide_ceil(T a, T b) {
  const T quotient = divide(a, b);
  return quotient + (b != 0 && quotient * b != a && ((a < 0) == (b < 0)));
}

// Shifts by the width or more leave nothing but the sign.
template <typename T>
static inline T shift_left(T a, T b) {
  return Unsigned<T>(b) < 8 * sizeof(T) ? T(Unsigned<T>(a) << b) : T(0);
}
template <typename T>
static inline T shift_right(T a, T b) {
  return T(a >> (Unsigned<T>(b) < 8 * sizeof(T) ? b : T(8 * sizeof(T) - 1)));
}
template <typename T>
static inline T shift_right_unsigned(T a, T b) {
  return Unsigned<T>(b) < 8 * sizeof(T) ? T(Unsigned<T>(a) >> b) : T(0);
}

template <typename T>
static inline T multiply_high(T a, T b) {
  using Wide = typename Signs<T>::Wide;
  return T((Wide(a) * Wide(b)) >> (8 * sizeof(T)));
}
template <typename T>
static inline T multiply_high_unsigned(T a, T b) {
  using Wide = typename Signs<T>::UnsignedWide;
  return T((Wide(Unsigned<T>(a)) * Wide(Unsigned<T>(b))) >> (8 * sizeof(T)));
}

// Conversions to integers saturate, as those of GPUs do; NaN becomes 0. Types narrower than 32 bits
// take the low bits of 32.
template <typename T, typename F>
static inline T to_signed(F value) {
  if constexpr (sizeof(T) < 4) {
    return static_cast<T>(to_signed<int32_t>(value));
  } else {
    constexpr F kEnd = F(1ull << (8 * sizeof(T) - 1));
    constexpr T kLeast = T(Unsigned<T>(1) << (8 * sizeof(T) - 1));
    const F inside = value < kEnd && value >= -kEnd ? value : F(0);
    return value >= kEnd ? T(~kLeast) : value < -kEnd ? kLeast : static_cast<T>(inside);
  }
}
template <typename T, typename F>
static inline T to_unsigned(F value) {
  if constexpr (sizeof(T) < 4) {
    return static_cast<T>(to_signed<int32_t>(value));
  } else {
    constexpr F kEnd = F(2) * F(1ull << (8 * sizeof(T) - 1));
    const F inside = value < kEnd && value > F(0) ? value : F(0);
    return value >= kEnd ? T(-1) : T(static_cast<Unsigned<T>>(inside));
  }
}

// Minima and maxima: those named `_number` ignore a NaN, the others return it.
template <typename T>
static inline T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}
template <typename T>
static inline T minimum(T a, T b) {
  return a < b || a != a ? a : b;
}
template <typename T>
static inline T maximum_number(T a, T b) {
  return a > b || b != b ? a : b;
}
template <typename T>
static inline T minimum_number(T a, T b) {
  return a < b || b != b ? a : b;
}

// Added to a float, it leaves the nearest integer in the low bits.
constexpr float kRounds = 12582912.0f;

// e^r times 2 to the power of the integer in the low bits of `shifted`, for r in [-0.35, 0.35]. A
// small result is made in two steps, as it may be subnormal.
static inline float scaled_exp(float shifted, float r, bool is_small) {
  float p = 1.38144533e-3f;
  p = p * r + 8.36878642e-3f;
  p = p * r + 4.16683964e-2f;
  p = p * r + 1.66665196e-1f;
  p = p * r + 0.49999994f;
  p = p * r * r + r + 1.0f;
  const uint32_t power = (bits_of<uint32_t>(shifted) + (is_small ? 64u : 0u)) << 23;
  return bits_of<float>(bits_of<uint32_t>(p) + power) * (is_small ? 5.42101086e-20f : 1.0f);
}

static inline float exp(float x) {
  const float above = x < -104.0f ? -104.0f : x;  // the results are 0
  const float shifted = above * 1.44269504f + kRounds;
  const float n = shifted - kRounds;
  const float r = (above - n * 0.693359375f) + n * 2.12194440e-4f;
  const float y = scaled_exp(shifted, r, above < -87.0f);
  return x < 88.7228394f ? y : x * __builtin_inff();  // NaN, too
}
static inline double exp(double x) { return __builtin_exp(x); }

static inline float exp2(float x) {
  const float above = x < -151.0f ? -151.0f : x;
  const float shifted = above + kRounds;
  const float r = (above - (shifted - kRounds)) * 0.693147181f;
  const float y = scaled_exp(shifted, r, above < -125.0f);
  return x < 128.0f ? y : x * __builtin_inff();
}
static inline double exp2(double x) { return __builtin_exp2(x); }

}  // namespace openreg_triton
