// The largest dummies on which kernels run; see Note [Trial runs] in TrialRun.h.
#pragma once

#include <cstdint>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// From now on, a kernel whose operands have more elements together does not run on dummies, not
// even on small ones, as a result's size may be an argument. What it would reject is then found by
// its run, or not at all. For operands whose memory does not exist.
OPENREG_EXPORT void limitDummies(int64_t elements);

}  // namespace at::openreg
