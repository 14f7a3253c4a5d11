// Captures the settings of the process that CPU kernels read, and applies them when a kernel runs.
//
// Note [Settings at the call]
// A CPU kernel reads at::globalContext() and c10::get_default_dtype(): the default dtype, the
// precision of matrix products, whether to use oneDNN, whether to be deterministic. A program may
// change these between a call and the time at which the stream's worker runs the kernel, or while
// it runs. The kernel must use the settings of its call, as on CUDA, where they are read at the
// call. The rest of the process must see the current ones.
//
// So a launch captures the settings in one word, and the worker runs the kernel with a thread-local
// at::Context that has the word's values. libtorch_cpu calls the two functions above through its
// table of imported functions, as every shared library does. That table is redirected to functions
// that return the thread's settings, if it has any. Nothing else in the process changes, and a
// thread without settings of its own sees those of the process. If the table cannot be changed, a
// kernel whose settings differ from the process's fails with an error.
#pragma once

#include <cstdint>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// The captured settings. Equal words mean equal settings.
using KernelSettings = uint64_t;

// The current settings of the process. Costs a few loads.
OPENREG_EXPORT KernelSettings currentSettings();

// Makes CPU kernels on the calling thread use these settings until the next call on this thread.
// For threads that run only kernels.
// Errors: throws if the settings differ from the process's and thread-local settings are
// unavailable.
void useSettings(KernelSettings settings);

}  // namespace at::openreg
