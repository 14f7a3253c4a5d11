// The fallback for sparse, quantized and nested tensors.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace at::openreg {

// A boxed kernel for any operator: runFallback(), with correct views in inference mode.
torch::CppFunction layoutFallback();

// Registers it under `key` for each operator of ATen that has a CPU kernel under `cpu_key` and no
// kernel under `key` yet: call it last. A fallback of the dispatcher would not suffice, because
// composite kernels take precedence over it, and some of ATen's only raise that a backend lacks a
// kernel. Composed views get a kernel that respects inference mode and leaves them composed.
void registerLayoutFallback(c10::DispatchKey cpu_key, c10::DispatchKey key, torch::Library& m);

}  // namespace at::openreg
