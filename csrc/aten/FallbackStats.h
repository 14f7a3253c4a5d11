// Book-keeping of the boxed fallback.
#pragma once

#include <string>

#include "csrc/aten/Fallback.h"

namespace at::openreg {

// Counts a call of the operator named, and does what the mode says: nothing, warn once per
// operator, or throw NotImplementedError.
void countFallback(const std::string& name);

}  // namespace at::openreg
