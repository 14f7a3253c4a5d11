// Products with 4-bit weights. CUDA packs the weights in tiles of 8 rows and 16 columns, as its
// tensor cores take them. A checkpoint may contain packed weights, so they have the same order
// here. The product converts them to the CPU's order and runs the CPU's kernel.

#include <ATen/TensorOperators.h>
#include <ATen/ops/_convert_weight_to_int4pack_for_cpu.h>
#include <ATen/ops/_weight_int4pack_mm_for_cpu.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

constexpr int64_t kTileRows = 8;
constexpr int64_t kTileColumns = 16;
constexpr int64_t kLanes = 32;
constexpr int64_t kRowsOnCpu = 16;  // the CPU's kernel requires multiples

// Note [Order of packed weights]
// An int32 holds eight weights of a row, from two tiles: a pair of neighbors from each half of each
// tile. Its lower four are the even elements of the pairs, its upper four the odd ones. Each of 32
// lanes holds a row of the tile and the pairs at one of four positions; the int32s of a lane are
// adjacent in memory. So a column index consists of, from slowest to fastest: group of tiles, pair
// of tiles, tile, half, position, element of the pair.
//   weights [tile of rows, row, group, pair of tiles, tile, half, position, odd]
//   packed  [tile of rows, group, row, position, pair of tiles, odd, tile, half]

// The functions below run on the worker.

void packWeights(const Tensor& weight, int64_t inner_k_tiles, Tensor& packed) {
  const int64_t columns = weight.size(1) * 2;
  // The upper half of a byte holds the first of its two weights.
  const Tensor numbers =
      at::stack({weight.bitwise_right_shift(4), weight.bitwise_and(15)}, -1)
          .view({weight.size(0) / kTileRows, kTileRows, columns / (inner_k_tiles * kTileColumns),
                 inner_k_tiles / 2, 2, 2, 4, 2})
          .permute({0, 2, 1, 6, 3, 7, 4, 5})
          .reshape({-1, 2});
  const Tensor bytes = numbers.select(1, 0) + numbers.select(1, 1).bitwise_left_shift(4);
  packed.copy_(bytes.view(kInt).view(packed.sizes()));
}

// One int32 for each weight, as the CPU packs them.
Tensor unpackWeights(const Tensor& packed) {
  const int64_t rows = packed.size(0) * kTileRows;
  const Tensor bytes = packed.contiguous().view({-1}).view(kByte);
  return at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1)
      .view({packed.size(0), packed.size(1), kTileRows, 4, packed.size(3), 2, 2, 2})
      .permute({0, 2, 1, 4, 6, 7, 3, 5})
      .reshape({rows, -1})
      .to(kInt);
}

void multiplyWeights(const Tensor& input, const Tensor& packed, int64_t group_size,
                     const Tensor& scales_and_zeros, Tensor& output) {
  const int64_t rows = output.size(1);
  const int64_t missing = (kRowsOnCpu - rows % kRowsOnCpu) % kRowsOnCpu;
  const Tensor weight = at::constant_pad_nd(unpackWeights(packed), {0, 0, 0, missing});
  const Tensor on_cpu = at::_convert_weight_to_int4pack_for_cpu(weight, packed.size(3) * 2);
  const Tensor product = at::_weight_int4pack_mm_for_cpu(
      input.contiguous(), on_cpu, group_size,
      at::constant_pad_nd(scales_and_zeros, {0, 0, 0, missing}).contiguous());
  output.copy_(product.narrow(1, 0, rows));
}

// The functions below run on the calling thread.

void checkInnerTiles(const char* operation, int64_t inner_k_tiles) {
  TORCH_CHECK(inner_k_tiles == 2 || inner_k_tiles == 4 || inner_k_tiles == 8, operation,
              ": expected 2, 4 or 8 for innerKTiles, got ", inner_k_tiles);
}

Tensor convertWeight(const Tensor& self, int64_t inner_k_tiles) {
  constexpr const char* kOperation = "_convert_weight_to_int4pack";
  TORCH_CHECK(self.dim() == 2 && self.scalar_type() == kByte, kOperation,
              ": expected a uint8 tensor of 2 dimensions, with two weights in a byte, got ",
              self.scalar_type(), " of ", self.sizes());
  checkInnerTiles(kOperation, inner_k_tiles);
  const int64_t columns = self.size(1) * 2;
  TORCH_CHECK(self.size(0) % kTileRows == 0 && columns % (inner_k_tiles * kTileColumns) == 0,
              kOperation, ": expected multiples of ", kTileRows, " rows and of ",
              inner_k_tiles * kTileColumns, " columns, got ", self.size(0), " and ", columns);
  const c10::DeviceGuard guard(self.device());
  Tensor packed =
      emptyOnCurrentDevice({self.size(0) / kTileRows, columns / (inner_k_tiles * kTileColumns),
                            kLanes, inner_k_tiles / 2},
                           kInt);
  enqueue<"aten::_convert_weight_to_int4pack">(self.device(), packWeights, self, inner_k_tiles,
                                               packed);
  return packed;
}

Tensor multiplyInt4(const Tensor& self, const Tensor& mat2, int64_t group_size,
                    const Tensor& scales_and_zeros) {
  constexpr const char* kOperation = "_weight_int4pack_mm";
  const ScalarType type = self.scalar_type();
  TORCH_CHECK(self.dim() == 2 && (type == kFloat || type == kHalf || type == kBFloat16), kOperation,
              ": expected a float32, float16 or bfloat16 matrix, got ", type, " of ", self.sizes());
  TORCH_CHECK(mat2.dim() == 4 && mat2.scalar_type() == kInt && mat2.size(2) == kLanes, kOperation,
              ": expected weights as _convert_weight_to_int4pack returns them, got ",
              mat2.scalar_type(), " of ", mat2.sizes());
  checkInnerTiles(kOperation, mat2.size(3) * 2);
  const int64_t columns = mat2.size(1) * mat2.size(3) * 2 * kTileColumns;
  TORCH_CHECK(self.size(1) == columns, kOperation, ": expected ", columns,
              " columns, as the weights have, got ", self.size(1));
  TORCH_CHECK(group_size == 32 || group_size == 64 || group_size == 128 || group_size == 256,
              kOperation, ": expected 32, 64, 128 or 256 for qGroupSize, got ", group_size);
  const int64_t rows = mat2.size(0) * kTileRows;
  TORCH_CHECK(columns % group_size == 0 && scales_and_zeros.scalar_type() == type &&
                  scales_and_zeros.sizes() == IntArrayRef({columns / group_size, rows, 2}),
              kOperation, ": expected qScaleAndZeros of ", type, " and of [", columns, " / ",
              group_size, ", ", rows, ", 2], got ", scales_and_zeros.scalar_type(), " of ",
              scales_and_zeros.sizes());
  const c10::DeviceGuard guard(self.device());
  Tensor output = emptyOnCurrentDevice({self.size(0), rows}, type);
  if (output.numel() == 0) {
    return output;
  }
  enqueue<"aten::_weight_int4pack_mm">(self.device(), multiplyWeights, self, mat2, group_size,
                                       scales_and_zeros, output);
  return output;
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_convert_weight_to_int4pack", TORCH_FN(convertWeight));
  m.impl("_weight_int4pack_mm",
         &DeviceCheckingKernel<"aten::_weight_int4pack_mm", &multiplyInt4>::call);
}

}  // namespace at::openreg
