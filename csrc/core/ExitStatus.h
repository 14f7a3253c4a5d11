// The status with which the process exits.
#pragma once

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Has the process exit with status 1 where it would exit with status 0. Another status that the
// program has chosen, the end by a signal and _exit() are left as they are. To be called when the
// process is about to exit; in a child forked afterwards it has no effect.
OPENREG_EXPORT void failExit();

}  // namespace c10::openreg
