// The interface between a kernel that Inductor generates and the backend. This text becomes part of
// the kernel's source, which is compiled without torch's headers and ours.
#pragma once

#include "torch_openreg/aten/KernelSlot.h"

// Calls the kernel with its arguments. Each kernel's library exports a function with this name.
using OpenRegKernelCall = void (*)(const OpenRegSlot* arguments);
#define OPENREG_KERNEL_CALL "openreg_call_kernel"
