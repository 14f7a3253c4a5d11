// The fallback for sparse, quantized and nested tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <optional>

namespace at::openreg {

// A boxed kernel for any operator: runFallback(), with correct views in inference mode.
torch::CppFunction layoutFallback();

// The device of a call, whose tensors must be on one device, as those of CUDA's kernels.
c10::Device checkedDevice(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          const torch::jit::Stack& stack);

// For an operator whose kernel CUDA and the CPU share: runs the CPU's, which calls operators on the
// device's tensors and on their components.
void runSharedKernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack);

// The kernel with which an operator of ATen follows the CPU's kernel under `cpu_key`: the fallback,
// if there is one, and for composed views a kernel that respects inference mode and leaves them
// composed. std::nullopt if the operator needs none.
std::optional<torch::CppFunction> layoutKernelFor(const c10::OperatorHandle& op,
                                                  c10::DispatchKey cpu_key);

// Registers it for each operator that has no kernel yet for a layout, such as Sparse: call it last.
// A fallback of the dispatcher would not suffice, because composite kernels take precedence over
// it, and some of ATen's only raise that a backend lacks a kernel.
void registerLayoutFallback(c10::DispatchKey layout, torch::Library& m);

}  // namespace at::openreg
