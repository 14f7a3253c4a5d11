// LU decompositions without pivots, which CUDA has and the CPU refuses.
//
// For kernels on CPU tensors: they resize their outputs, as at::cpu::*_outf do. As on CUDA, a pivot
// of zero is reported in `info`, and the undefined elements of the factors are zeros.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// aten::linalg_lu_factor_ex with pivot=False. `pivots` become those of no exchange.
// Errors: a RuntimeError if `check_errors` is true and a pivot is zero.
OPENREG_EXPORT void factorWithoutPivots(const Tensor& matrices, bool check_errors, Tensor& lu,
                                        Tensor& pivots, Tensor& info);

// aten::linalg_lu with pivot=False. `permutation` becomes empty.
OPENREG_EXPORT void decomposeWithoutPivots(const Tensor& matrices, Tensor& permutation,
                                           Tensor& lower, Tensor& upper);

}  // namespace at::openreg
