// Sizes of results that the fallback cannot tell without data, in a dry run.
//
// Note [Sizes from data]
// The sizes of what nonzero, masked_select, unique and a few others return depend on data. If that
// is large, or made up, they are guessed:
//   worst  as large as data can make them; where there is no limit, such as for bincount, as many
//   as
//          the operand has elements
//   none   as small
//   error  the call fails
// Each guess is counted, since the memory of the program depends on it. The other rules here are
// for operators without a kernel for the device "meta", whose sizes follow from the arguments.
#pragma once

#include <cstdint>
#include <string_view>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

enum class GuessedSizes : uint8_t { Worst, None, Error };

// Called with the operator whose sizes are guessed, on its thread. If it throws, the call fails.
using ReportGuess = void (*)(const char* kernel);

// Has the fallback ask the rules from now on.
OPENREG_EXPORT void startDescribing(GuessedSizes sizes, ReportGuess report);

// Whether sizes of the operator's results, such as "aten::nonzero", depend on data.
bool areSizesInData(std::string_view kernel);

}  // namespace at::openreg
