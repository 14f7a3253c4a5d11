// Kernels and tensors of code that Inductor generates; see torch_openreg/extras/inductor.
//
// The source of such a kernel is what Inductor generates for the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <string_view>

#include "torch_openreg/aten/GeneratedKernel.h"
#include "torch_openreg/core/Macros.h"
#include "torch_openreg/inductor/kernel.h"

namespace at::openreg {

// The kernel with this name. `parameters` has a letter for each parameter: r, w or u for a tensor
// that is read, written or updated, i for an integer, f for a number.
// Errors: RuntimeError for a library that is not loaded or does not export a kernel, and for
// letters that are none of these.
OPENREG_EXPORT GeneratedKernel& inductorKernel(const std::string& name, const std::string& library,
                                               std::string_view parameters);

// The same for a function of a library that stays loaded.
OPENREG_EXPORT GeneratedKernel& inductorKernel(const std::string& name, OpenRegKernelCall call,
                                               std::string_view parameters);

// As at::empty_strided on a device, without the dispatcher.
OPENREG_EXPORT Tensor emptyStridedOn(c10::DeviceIndex device, IntArrayRef sizes,
                                     IntArrayRef strides, ScalarType dtype);

}  // namespace at::openreg
