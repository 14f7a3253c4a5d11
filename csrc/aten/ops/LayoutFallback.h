// The fallback for sparse, quantized and nested tensors.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace at::openreg {

// A boxed kernel for any operator: runFallback(), with views as they are in inference mode.
torch::CppFunction layoutFallback();

// Registers it under `key` for each operator of ATen that the CPU has a kernel for under `cpu_key`
// and that has none yet under `key`: call it last. A library's fallback alone would yield to
// kernels that are composed of other operators, and ATen has some that only say that a backend
// lacks its own. Composed views get a kernel that heeds inference mode and leaves them composed.
void registerLayoutFallback(c10::DispatchKey cpu_key, c10::DispatchKey key, torch::Library& m);

}  // namespace at::openreg
