// Fills, for other operator families.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::openreg {

// Fills a fresh tensor as torch.utils.deterministic.fill_uninitialized_memory asks: NaN or the
// type's largest value.
void fillDeterministically(Tensor& tensor);

}  // namespace at::openreg
