// Fills, for other operator families.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::openreg {

// Fills a new tensor as torch.utils.deterministic.fill_uninitialized_memory requires: with NaN or
// the type's largest value.
void fillDeterministically(Tensor& tensor);

}  // namespace at::openreg
