// Fourier transforms of float16 and complex32, which CUDA's library computes for some sizes only.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace at::openreg {

// Throws CUDA's error, with device type cuda, if the call transforms numbers of half precision
// along a dimension whose size is not a power of two. Other operators than Fourier transforms pass.
void checkHalfTransform(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

}  // namespace at::openreg
