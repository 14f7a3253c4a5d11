// Products of groups of 8-bit floating-point matrices, with a scale for each row of the left matrix
// and each column of the right one. The CPU has such a product only for two matrices; one kernel
// calls it for each group. The kernel reads the groups' bounds, so the host does not wait for them.

#include <ATen/BlasBackend.h>
#include <ATen/DimVector.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/TorchRelease.h"

namespace at::openreg {
namespace {

constexpr const char* kGrouped = "_scaled_grouped_mm";

// The functions below run on the worker.

// The bounds of the groups along a dimension of `length`, starting at 0.
std::vector<int64_t> groupBounds(const Tensor& offs, int64_t length) {
  const Tensor ends = offs.to(kLong).contiguous();
  std::vector<int64_t> bounds{0};
  for (int64_t i = 0; i < ends.numel(); ++i) {
    const int64_t end = ends.const_data_ptr<int64_t>()[i];
    TORCH_CHECK(bounds.back() <= end && end <= length, kGrouped,
                ": expected offs that ascend up to ", length, ", got ", end, " after ",
                bounds.back());
    bounds.push_back(end);
  }
  return bounds;
}

// The product of one group.
void multiplyScaled(const Tensor& left, const Tensor& right, const Tensor& scale_left,
                    const Tensor& scale_right, bool use_fast_accum, const Tensor& output) {
  if (output.numel() == 0) {
    return;
  }
  if (left.size(1) == 0) {
    output.zero_();
    return;
  }
  output.copy_(at::_scaled_mm(left, right, scale_left.unsqueeze(1), scale_right.unsqueeze(0),
                              /*bias=*/std::nullopt, /*scale_result=*/std::nullopt,
                              output.scalar_type(), use_fast_accum));
}

void multiplyGroups(const Tensor& left, const Tensor& right, const Tensor& scale_left,
                    const Tensor& scale_right, const std::optional<Tensor>& offs,
                    bool use_fast_accum, Tensor& output) {
  const bool has_left_groups = left.dim() == 3;
  const bool has_right_groups = right.dim() == 3;
  if (!offs.has_value()) {
    for (int64_t i = 0; i < left.size(0); ++i) {
      multiplyScaled(left[i], right[i], scale_left[i], scale_right[i], use_fast_accum, output[i]);
    }
    return;
  }
  // The groups divide the rows of the left matrix, the columns of the right one, or the dimension
  // that is summed over.
  const int64_t length = has_right_groups  ? left.size(0)
                         : has_left_groups ? right.size(1)
                                           : left.size(1);
  const std::vector<int64_t> bounds = groupBounds(*offs, length);
  if (has_left_groups != has_right_groups) {
    output.zero_();  // for elements outside of all groups
  }
  for (int64_t i = 0; i < offs->numel(); ++i) {
    const int64_t begin = bounds[static_cast<size_t>(i)];
    const int64_t size = bounds[static_cast<size_t>(i) + 1] - begin;
    if (has_right_groups) {
      multiplyScaled(left.narrow(0, begin, size), right[i], scale_left.narrow(0, begin, size),
                     scale_right[i], use_fast_accum, output.narrow(0, begin, size));
    } else if (has_left_groups) {
      multiplyScaled(left[i], right.narrow(1, begin, size), scale_left[i],
                     scale_right.narrow(0, begin, size), use_fast_accum,
                     output.narrow(1, begin, size));
    } else {
      const int64_t rows = left.size(0);
      const int64_t columns = right.size(1);
      multiplyScaled(left.narrow(1, begin, size), right.narrow(0, begin, size),
                     scale_left.narrow(0, i * rows, rows),
                     scale_right.narrow(0, i * columns, columns), use_fast_accum, output[i]);
    }
  }
}

// The functions below run on the calling thread.

// `dim` is the dimension of the matrix that the scales belong to.
void checkScale(const char* name, const Tensor& scale, const Tensor& matrix, int64_t dim,
                int64_t times) {
  TORCH_CHECK_NOT_IMPLEMENTED(scale.scalar_type() != kFloat8_e8m0fnu, kGrouped, ": expected ", name,
                              " of float32, got Float8_e8m0fnu; the CPU has no product with scales "
                              "of blocks");
  TORCH_CHECK(scale.scalar_type() == kFloat && scale.stride(-1) == 1, kGrouped, ": expected ", name,
              " of float32 and contiguous, got ", scale.scalar_type(), " with strides ",
              scale.strides());
  const DimVector sizes = matrix.dim() == 2 ? DimVector{matrix.size(dim) * times}
                                            : DimVector{matrix.size(0), matrix.size(dim + 1)};
  TORCH_CHECK(scale.sizes() == IntArrayRef(sizes), kGrouped, ": expected ", name, " of ",
              IntArrayRef(sizes), ", got ", scale.sizes());
}

// The number of groups. Throws where CUDA does, except for its requirements on strides.
int64_t checkGroups(const Tensor& left, const Tensor& right, const std::optional<Tensor>& offs) {
  TORCH_CHECK(left.scalar_type() == kFloat8_e4m3fn && right.scalar_type() == kFloat8_e4m3fn,
              kGrouped, ": expected matrices of Float8_e4m3fn, got ", left.scalar_type(), " and ",
              right.scalar_type());
  for (const Tensor* one : {&left, &right}) {
    TORCH_CHECK(one->dim() == 2 || one->dim() == 3, kGrouped,
                ": expected matrices of 2 or 3 dimensions, got ", one->dim());
  }
  TORCH_CHECK(left.stride(-1) == 1, kGrouped,
              ": expected rows of the first matrix to be contiguous, got strides ", left.strides());
  TORCH_CHECK(right.stride(-2) == 1, kGrouped,
              ": expected columns of the second matrix to be contiguous, got strides ",
              right.strides());
  TORCH_CHECK(left.size(-1) == right.size(-2), kGrouped,
              ": expected as many columns of the first matrix as rows of the second, got ",
              left.sizes(), " and ", right.sizes());
  const bool needs_offs = left.dim() == 2 || right.dim() == 2;
  TORCH_CHECK(needs_offs == offs.has_value(), kGrouped, ": expected ", needs_offs ? "" : "no ",
              "offs for matrices of ", left.dim(), " and ", right.dim(), " dimensions");
  if (needs_offs) {
    TORCH_CHECK(offs->dim() == 1 && offs->scalar_type() == kInt, kGrouped,
                ": expected offs of 1 dimension, int32, got ", offs->sizes(), " of ",
                offs->scalar_type());
  }
  const int64_t groups = needs_offs ? offs->size(0) : left.size(0);
  for (const Tensor* one : {&left, &right}) {
    TORCH_CHECK(one->dim() == 2 || one->size(0) == groups, kGrouped, ": expected ", groups,
                " groups, got a matrix of ", one->sizes());
  }
  return groups;
}

Tensor scaledGroupedProduct(const Tensor& self, const Tensor& mat2, const Tensor& scale_a,
                            const Tensor& scale_b, const std::optional<Tensor>& offs,
                            const std::optional<Tensor>& bias,
                            const std::optional<Tensor>& scale_result,
                            std::optional<ScalarType> out_dtype, bool use_fast_accum) {
  const int64_t groups = checkGroups(self, mat2, offs);
  const bool are_both_flat = self.dim() == 2 && mat2.dim() == 2;
  checkScale("scale_a", scale_a, self, 0, are_both_flat ? groups : 1);
  checkScale("scale_b", scale_b, mat2, 1, are_both_flat ? groups : 1);
  TORCH_CHECK_NOT_IMPLEMENTED(!bias.has_value() && !scale_result.has_value(), kGrouped,
                              ": expected neither bias nor scale_result");
  TORCH_CHECK(out_dtype.value_or(kBFloat16) == kBFloat16, kGrouped,
              ": expected out_dtype to be BFloat16, got ", out_dtype.value_or(kBFloat16));
  const c10::DeviceGuard guard(self.device());
  Tensor output = self.dim() == mat2.dim()
                      ? emptyOnCurrentDevice({groups, self.size(-2), mat2.size(-1)}, kBFloat16)
                      : emptyOnCurrentDevice({self.size(-2), mat2.size(-1)}, kBFloat16);
  enqueue<"aten::_scaled_grouped_mm">(self.device(), multiplyGroups, self, mat2, scale_a, scale_b,
                                      offs, use_fast_accum, output);
  return output;
}

#if OPENREG_TORCH_HAS_STRUCTURED_GROUPED_PRODUCT
using Scales = const ITensorListRef&;
#else
using Scales = TensorList;
#endif

// The same with a recipe for each scale; the CPU supports only scales of rows.
Tensor scaledGroupedProductByRecipe(const Tensor& self, const Tensor& mat2, Scales scale_a,
                                    IntArrayRef recipe_a, IntArrayRef /*swizzle_a*/, Scales scale_b,
                                    IntArrayRef recipe_b, IntArrayRef /*swizzle_b*/,
                                    const std::optional<Tensor>& offs,
                                    const std::optional<Tensor>& bias,
                                    std::optional<ScalarType> out_dtype,
                                    IntArrayRef /*contraction_dim*/, bool use_fast_accum) {
  constexpr auto kRowWise = static_cast<int64_t>(at::blas::ScalingType::RowWise);
  TORCH_CHECK_NOT_IMPLEMENTED(
      recipe_a == IntArrayRef({kRowWise}) && recipe_b == IntArrayRef({kRowWise}), kGrouped,
      "_v2: expected RowWise scales, got the recipes ", recipe_a, " and ", recipe_b,
      "; the CPU has no product with other scales");
  TORCH_CHECK(scale_a.size() == 1 && scale_b.size() == 1, kGrouped,
              "_v2: expected one tensor of scales for each matrix, got ", scale_a.size(), " and ",
              scale_b.size());
  return scaledGroupedProduct(self, mat2, scale_a.front(), scale_b.front(), offs, bias,
                              /*scale_result=*/std::nullopt, out_dtype, use_fast_accum);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_scaled_grouped_mm",
         &DeviceCheckingKernel<"aten::_scaled_grouped_mm", &scaledGroupedProduct>::call);
  m.impl("_scaled_grouped_mm_v2",
         &DeviceCheckingKernel<"aten::_scaled_grouped_mm_v2", &scaledGroupedProductByRecipe>::call);
}

}  // namespace at::openreg
