// The exit status of the process.
#pragma once

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Makes the process exit with status 1 instead of 0. Other statuses, termination by a signal and
// _exit() are not affected. Call when the process is about to exit; has no effect in a child that
// is forked afterwards.
OPENREG_EXPORT void failExit();

}  // namespace c10::openreg
