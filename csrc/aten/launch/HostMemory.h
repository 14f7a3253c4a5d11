// Memory of the host that kernels find at another address.
#pragma once

#include <ATen/core/TensorBase.h>

namespace at::openreg {

// Whether kernels find the memory of a CPU tensor at another address than the host does; see
// TensorAlias::ofHostMemory().
bool hasKernelAddress(const TensorBase& host);

}  // namespace at::openreg
