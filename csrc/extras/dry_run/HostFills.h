// Fills of large tensors on the host, in a dry run.
//
// Note [Large tensors on the host]
// Many programs make a model on the host and move it to the device. In a dry run, that takes the
// host memory of the whole model, and the time of its initialization, for values that no kernel
// will see. The operating system hands out a page at its first access. So fills of large tensors of
// floating-point numbers are left out: uniform_, normal_, fill_, zero_ and copy_, and thereby what
// consists of them, such as torch.randn and torch.nn.init. The tensor then holds zeros if its
// memory is new. Integers are filled, since they are data: tokens, indices, lengths.
#pragma once

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Replaces the CPU's kernels of these operators, until the process ends. Call once.
OPENREG_EXPORT void startSkippingHostFills();

}  // namespace at::openreg
