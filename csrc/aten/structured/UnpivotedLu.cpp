#include "csrc/aten/structured/UnpivotedLu.h"

#include <ATen/DimVector.h>
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace at::openreg {
namespace {

// Factors a matrix of contiguous rows in place. Returns the number of the first pivot that is zero,
// from 1 on, or 0 if there is none.
template <typename Element>
int factorMatrix(Element* matrix, int64_t rows, int64_t columns) {
  int first_zero = 0;
  for (int64_t k = 0; k < std::min(rows, columns); ++k) {
    const Element* const pivot_row = matrix + k * columns;
    const Element pivot = pivot_row[k];
    if (pivot == Element(0) && first_zero == 0) {
      first_zero = static_cast<int>(k) + 1;
    }
    for (int64_t i = k + 1; i < rows; ++i) {
      Element* const row = matrix + i * columns;
      row[k] /= pivot;
      for (int64_t j = k + 1; j < columns; ++j) {
        row[j] -= row[k] * pivot_row[j];
      }
    }
  }
  return first_zero;
}

}  // namespace

void factorWithoutPivots(const Tensor& matrices, bool check_errors, Tensor& lu, Tensor& pivots,
                         Tensor& info) {
  const int64_t rows = matrices.size(-2);
  const int64_t columns = matrices.size(-1);
  const int64_t pivot_count = std::min(rows, columns);
  const IntArrayRef batch = matrices.sizes().slice(0, matrices.dim() - 2);
  DimVector pivot_sizes(batch);
  pivot_sizes.push_back(pivot_count);
  const Tensor work = matrices.clone(MemoryFormat::Contiguous);
  const Tensor zero_pivots = at::zeros(batch, info.options());
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(matrices.scalar_type(), "lu_cuda", [&] {
    auto* matrix = work.mutable_data_ptr<scalar_t>();
    auto* zero_pivot = zero_pivots.mutable_data_ptr<int>();
    for (int64_t index = 0; index < zero_pivots.numel(); ++index) {
      zero_pivot[index] = factorMatrix(matrix + index * rows * columns, rows, columns);
    }
  });
  if (zero_pivots.any().item<bool>()) {
    work.nan_to_num_(0, std::numeric_limits<double>::infinity(),
                     -std::numeric_limits<double>::infinity());
  }
  lu.resize_(matrices.sizes()).copy_(work);
  pivots.resize_(pivot_sizes).copy_(at::arange(1, pivot_count + 1, pivots.options()));
  info.resize_(batch).copy_(zero_pivots);
  if (check_errors) {
    at::_linalg_check_errors(info, "torch.linalg.lu_factor_ex", batch.empty());
  }
}

void decomposeWithoutPivots(const Tensor& matrices, Tensor& permutation, Tensor& lower,
                            Tensor& upper) {
  Tensor lu = at::empty({0}, matrices.options());
  Tensor pivots = at::empty({0}, matrices.options().dtype(kInt));
  Tensor info = at::empty({0}, matrices.options().dtype(kInt));
  factorWithoutPivots(matrices, /*check_errors=*/false, lu, pivots, info);
  const int64_t pivot_count = std::min(matrices.size(-2), matrices.size(-1));
  Tensor unit = lu.narrow(-1, 0, pivot_count).tril(-1);
  unit.diagonal(0, -2, -1).fill_(1);
  permutation.resize_({0});
  lower.resize_(unit.sizes()).copy_(unit);
  const Tensor triangle = lu.narrow(-2, 0, pivot_count).triu();
  upper.resize_(triangle.sizes()).copy_(triangle);
}

}  // namespace at::openreg
