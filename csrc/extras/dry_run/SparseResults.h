// Sparse results of calls that a dry run skips.
//
// They are composed of operators on indices and values, which are skipped or run in turn by their
// own sizes: so small data stay real, and what is made up is known to be.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>

#include "csrc/aten/fallback/BoxedCall.h"

namespace at::openreg {

// The number of elements of a result, between `least` and `most`, which depends on data.
using GuessNumber = std::function<int64_t(int64_t most, int64_t least)>;

// Replaces the arguments on the stack by the results. Returns whether it knows the operator.
bool composeSparse(const BoxedCall& call, torch::jit::Stack* stack, const GuessNumber& guess);

}  // namespace at::openreg
