// Kernels of the CPU that take the memory of their results.
//
// A planned call knows its results' memory before it runs, but most functions of the CPU allocate
// results themselves, which then have to be copied. Where such a function is little more than that
// allocation and a call of a kernel, the worker calls the kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Computes `results`, as the operator returns them, from the operator's arguments. All are CPU
// tensors, and the operator has accepted arguments with this metadata before.
using ResultKernel = void (*)(c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<Tensor> results);

// The one for an operator such as "aten::native_layer_norm"; null if there is none.
ResultKernel findResultKernel(std::string_view name);

// The names of all operators that have one.
OPENREG_EXPORT std::vector<std::string_view> resultKernelNames();

}  // namespace at::openreg
