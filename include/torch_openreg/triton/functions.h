// Functions of CUDA's libdevice that compilers do not have, for generated kernels.
#pragma once

#include <stdint.h>
#include <torch_openreg/triton/numbers.h>

namespace openreg_triton {

template <typename T>
static inline T count_leading(T value) {
  constexpr int kWidth = 8 * sizeof(T);
  const Unsigned<T> bits = Unsigned<T>(value);
  return T(bits == 0      ? kWidth
           : kWidth == 64 ? __builtin_clzll(bits)
                          : __builtin_clz(uint32_t(bits)) - (32 - kWidth));
}

template <typename T>
static inline T count_trailing(T value) {
  constexpr int kWidth = 8 * sizeof(T);
  const Unsigned<T> bits = Unsigned<T>(value);
  return T(bits == 0 ? kWidth : __builtin_ctzll(uint64_t(bits)));
}

template <typename T>
static inline T count_ones(T value) {
  return T(__builtin_popcountll(uint64_t(Unsigned<T>(value))));
}

template <typename T>
static inline T reverse_bits(T value) {
  Unsigned<T> bits = Unsigned<T>(value);
  Unsigned<T> result = 0;
  for (unsigned index = 0; index < 8 * sizeof(T); ++index) {
    result = Unsigned<T>(result << 1) | (bits & 1);
    bits >>= 1;
  }
  return T(result);
}

// Four bytes of the eight of two words, chosen by the low three bits of each of `selector`'s
// nibbles. The fourth bit chooses the byte's sign, in all bits.
static inline int32_t permute_bytes(int32_t low, int32_t high, int32_t selector) {
  const uint64_t bytes = uint64_t(uint32_t(high)) << 32 | uint32_t(low);
  uint32_t result = 0;
  for (int index = 0; index < 4; ++index) {
    const uint32_t choice = uint32_t(selector) >> (4 * index);
    uint32_t byte = uint32_t(bytes >> (8 * (choice & 7))) & 0xff;
    byte = choice & 8 ? (byte & 0x80 ? 0xff : 0) : byte;
    result |= byte << (8 * index);
  }
  return int32_t(result);
}

// exp(x^2) * erfc(x). For large x by its continued fraction, as the factors leave their ranges.
static inline double scaled_erfc(double x) {
  if (x < 25.0) {
    return __builtin_exp(x * x) * __builtin_erfc(x);
  }
  double fraction = x;
  for (int term = 20; term > 0; --term) {
    fraction = x + 0.5 * term / fraction;
  }
  return 0.56418958354775628695 / fraction;
}

// By Newton's method, from the quantile's logarithmic approximation.
static inline double inverse_erfc(double y) {
  if (!(y > 0.0 && y < 2.0)) {
    return y == 0.0 ? __builtin_inf() : y == 2.0 ? -__builtin_inf() : __builtin_nan("");
  }
  const double tail = y < 1.0 ? y : 2.0 - y;
  const double logarithm = __builtin_log(tail * (2.0 - tail));
  const double half = 4.3307467508 + 0.5 * logarithm;
  double x = __builtin_sqrt(__builtin_sqrt(half * half - 6.8026931 * logarithm) - half);
  for (int step = 0; step < 4; ++step) {
    const double error = __builtin_erfc(x) - tail;
    const double slope = 1.12837916709551257390 * __builtin_exp(-x * x);
    x += slope > 0.0 ? error / (slope - x * error) : 0.0;
  }
  return y < 1.0 ? x : -x;
}

static inline double inverse_erf(double y) {
  // Near 0 the difference from 1 loses digits.
  if (y > -1e-3 && y < 1e-3) {
    return y * (0.88622692545275801365 + y * y * 0.23201366653465449989);
  }
  return y < 0.0 ? -inverse_erfc(1.0 + y) : inverse_erfc(1.0 - y);
}

// By the power series, which converges everywhere; large arguments by the asymptotic one.
template <int kOrder>
static inline double bessel_i(double x) {
  const double magnitude = __builtin_fabs(x);
  const double sign = kOrder == 1 && x < 0.0 ? -1.0 : 1.0;
  if (magnitude < 30.0) {
    const double quarter = 0.25 * x * x;
    double term = kOrder == 0 ? 1.0 : 0.5 * magnitude;
    double sum = term;
    for (int index = 1; index < 100 && term > sum * 1e-17; ++index) {
      term *= quarter / (double(index) * (index + kOrder));
      sum += term;
    }
    return sign * sum;
  }
  double term = 1.0;
  double sum = 1.0;
  for (int index = 1; index < 15; ++index) {
    const double odd = 2 * index - 1;
    term *= -(4.0 * kOrder * kOrder - odd * odd) / (8.0 * index * magnitude);
    sum += term;
  }
  return sign * __builtin_exp(magnitude) * sum / __builtin_sqrt(6.28318530717958647693 * magnitude);
}
static inline double bessel_i0(double x) { return bessel_i<0>(x); }
static inline double bessel_i1(double x) { return bessel_i<1>(x); }

static inline float scaled_erfc(float x) { return float(scaled_erfc(double(x))); }
static inline float inverse_erfc(float x) { return float(inverse_erfc(double(x))); }
static inline float inverse_erf(float x) { return float(inverse_erf(double(x))); }
static inline float bessel_i0(float x) { return float(bessel_i0(double(x))); }
static inline float bessel_i1(float x) { return float(bessel_i1(double(x))); }

}  // namespace openreg_triton
