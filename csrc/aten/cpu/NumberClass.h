// Classes of numbers that an operator's checks cannot tell apart.
#pragma once

#include <c10/core/Scalar.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace at::openreg {

// Note [Classes of numbers]
// Operators check their numbers: whether a probability is at most 1, a norm is negative, a fill
// value fits the dtype. The result of such a check depends on how the number compares with a few
// limits. So all numbers of one class pass or fail alike, and a check that has passed for one need
// not be repeated for another. A class states between which limits the number lies, or which limit
// it equals, and whether it is an integer. Learning rates and similar numbers stay in their class
// from step to step.
inline uint64_t classOf(double number) {
  constexpr std::array<double, 22> kLimits = {-3.4028234663852886e38,
                                              -9223372036854775808.0,
                                              -2147483648.0,
                                              -65504.0,
                                              -32768.0,
                                              -255.0,
                                              -128.0,
                                              -1.0,
                                              0.0,
                                              1.0,
                                              127.0,
                                              128.0,
                                              255.0,
                                              256.0,
                                              32767.0,
                                              65504.0,
                                              65535.0,
                                              2147483647.0,
                                              4294967295.0,
                                              9223372036854775808.0,
                                              18446744073709551616.0,
                                              3.4028234663852886e38};
  // Most numbers are in these classes.
  constexpr auto kClassOfLimit = [](uint64_t index) { return 1 + (index << 2 | 3U); };
  if (number == 1) {
    return kClassOfLimit(9);
  }
  if (number == 0) {
    return kClassOfLimit(8);
  }
  static_assert(kLimits[9] == 1 && kLimits[8] == 0);
  if (std::isnan(number)) {
    return 0;
  }
  const auto* at = std::lower_bound(kLimits.begin(), kLimits.end(), number);
  const bool is_limit = at != kLimits.end() && *at == number;
  const bool is_integer = std::isinf(number) || std::trunc(number) == number;
  return 1 +
         (static_cast<uint64_t>(at - kLimits.begin()) << 2 | uint64_t(is_limit) << 1 |
          uint64_t(is_integer)) +
         (std::isinf(number) ? uint64_t(number > 0 ? 2 : 1) << 16 : 0);
}

// How two numbers of one call compare, for checks such as that of a range's ends.
inline uint64_t orderOf(double one, double other) {
  return one < other ? 1 : one == other ? 2 : one > other ? 3 : 0;
}

// The class of a Scalar together with its type.
inline uint64_t classOf(const Scalar& number) {
  if (number.isComplex()) {
    const auto value = number.toComplexDouble();
    return 3 | classOf(value.real()) << 2 | classOf(value.imag()) << 32;
  }
  if (number.isBoolean()) {
    return uint64_t(number.toBool()) << 2;
  }
  // An integer from 2^63 on, which only uint64 holds, may round to the same double as the largest
  // int64.
  return (number.isFloatingPoint() ? 1U : 2U) | classOf(number.toDouble()) << 2 |
         uint64_t(number.type() == ScalarType::UInt64) << 32;
}

}  // namespace at::openreg
