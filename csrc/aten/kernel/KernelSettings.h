// The settings of the process that kernels of the CPU read, captured and given back to a kernel.
//
// Note [Settings at the call]
// A kernel of the CPU asks at::globalContext() and c10::get_default_dtype() how to compute: the
// default dtype, the precision of matrix products, whether to use oneDNN, whether to be
// deterministic. A program may change these between a call and the moment at which the stream's
// worker runs the call's kernel, or while it runs. The kernel has to see those of its call, as on
// CUDA, where they are read when the call is made, and the rest of the process has to see the
// current ones.
//
// So a launch captures them in one word, and the worker runs the kernel with an at::Context of its
// own that has the word's values. libtorch_cpu reaches the two functions above through its table
// of imported functions, as every shared library does; we enter functions into that table that
// return the thread's own settings if it has any. Nothing else of the process is changed, and a
// thread without settings of its own sees what it always saw. If the table cannot be changed, a
// kernel whose settings are not those of the process fails with an error that says so.
#pragma once

#include <cstdint>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// The captured settings. Equal words mean equal settings.
using KernelSettings = uint64_t;

// Those of the process now. Costs some loads.
OPENREG_EXPORT KernelSettings currentSettings();

// Makes kernels of the CPU on the calling thread see these settings from now on, until the next
// call on this thread. For threads that run nothing else.
// Errors: throws if the settings are not those of the process and the thread cannot have its own.
void useSettings(KernelSettings settings);

}  // namespace at::openreg
