// torch's GPU trace: callbacks of Python for what happens on streams and in memory. CSAN
// (torch.cuda._sanitizer) is built on it.
#pragma once

#include <c10/util/FunctionRef.h>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Runs a call of torch's trace. torch's own functions must not be called while a Python exception
// is set, and memory may be freed then.
using RunTraceCall = void (*)(c10::function_ref<void()> call);

// Reports to the callbacks of torch.<device>._gpu_trace from now on. Does nothing unless torch's
// trace is active, which torch._C._activate_gpu_trace() makes it, or if it has been called before.
OPENREG_EXPORT void startGpuTrace(RunTraceCall run);

}  // namespace at::openreg
