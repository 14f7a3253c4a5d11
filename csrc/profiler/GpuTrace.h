// torch's GPU trace: callbacks of Python for what happens on streams and in memory. CSAN
// (torch.cuda._sanitizer) is built on it.
#pragma once

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Reports to the callbacks of torch.<device>._gpu_trace from now on. Does nothing unless torch's
// trace is active, which torch._C._activate_gpu_trace() makes it, or if it has been called before.
OPENREG_EXPORT void startGpuTrace();

}  // namespace at::openreg
