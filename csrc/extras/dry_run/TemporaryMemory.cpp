#include "csrc/extras/dry_run/TemporaryMemory.h"

#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <unordered_map>

namespace c10::openreg {
namespace {

constexpr size_t kFloatSize = 4;
constexpr size_t kLongSize = 8;

size_t roundUp(int64_t number, int64_t multiple) {
  return static_cast<size_t>((number + multiple - 1) / multiple * multiple);
}

int64_t ceilDiv(int64_t number, int64_t divisor) { return (number + divisor - 1) / divisor; }

size_t sizeOf(const TensorImpl& tensor, int64_t dim) {
  return static_cast<size_t>(tensor.size(dim));
}

// The bytes of an element of the type in which CUDA adds up numbers of this type.
size_t accumulatorSize(const TensorImpl& tensor) { return std::max(kFloatSize, tensor.itemsize()); }

// Gradients of the queries are added up in float32, and the sums of the gradients' rows are kept;
// heads of keys that several heads of queries share have gradients of their own first. Source:
// mha_bwd in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, without
// deterministic algorithms.
BlockSizes flashGradients(const TensorImpl& query, const TensorImpl& key, int64_t heads_at,
                          int64_t length_at) {
  const size_t batch = sizeOf(query, 0);
  const size_t heads = sizeOf(query, heads_at);
  const size_t rows = batch * heads * roundUp(query.size(length_at), 128);
  const int64_t padded_width = static_cast<int64_t>(roundUp(query.size(3), 8));
  const size_t width = roundUp(padded_width, padded_width <= 128 ? 32 : 64);
  BlockSizes sizes{rows * kFloatSize, rows * width * kFloatSize};
  if (key.size(heads_at) != query.size(heads_at)) {
    const size_t expanded =
        batch * sizeOf(key, length_at) * heads * static_cast<size_t>(padded_width) * key.itemsize();
    sizes.append({expanded, expanded});
  }
  return sizes;
}

// Operands: the gradient of the output, queries, keys.
BlockSizes scaledProductGradients(ArrayRef<Operand> operands, const GpuShape& /*gpu*/) {
  const TensorImpl& query = *operands[1].tensor;
  return query.dim() == 4 ? flashGradients(query, *operands[2].tensor, /*heads_at=*/1,
                                           /*length_at=*/2)
                          : BlockSizes();
}

BlockSizes flashAttentionGradients(ArrayRef<Operand> operands, const GpuShape& /*gpu*/) {
  const TensorImpl& query = *operands[1].tensor;
  return query.dim() == 4 ? flashGradients(query, *operands[2].tensor, /*heads_at=*/2,
                                           /*length_at=*/1)
                          : BlockSizes();
}

// The indices are sorted, and the gradients of equal ones are added up in parts of ten. Source:
// embedding_dense_backward_cuda in aten/src/ATen/native/cuda/Embedding.cu, whose kernel for few
// indices needs nothing, and EmbeddingBackwardKernel.cu. Operands: the gradient of the output, the
// indices, and the result.
BlockSizes embeddingGradients(ArrayRef<Operand> operands, const GpuShape& /*gpu*/) {
  constexpr int64_t kFewIndices = 3072;
  constexpr size_t kRowsPerThread = 10;
  const TensorImpl& indices = *operands[1].tensor;
  const TensorImpl& weight = *operands.back().tensor;
  if (indices.numel() <= kFewIndices || weight.dim() != 2) {
    return {};
  }
  const auto count = static_cast<size_t>(indices.numel());
  const size_t size = indices.itemsize();
  const size_t segments = std::min(count, sizeOf(weight, 0));
  const size_t parts = count / kRowsPerThread + segments;
  return {count * size,
          count * size,
          segments * size,
          segments * size,
          segments * size,
          parts * size,
          parts * sizeOf(weight, 1) * accumulatorSize(weight)};
}

// Whether the heads lie inside the rows, as attention of CUDA has its results.
bool hasHeadsInside(const TensorImpl& tensor) {
  const int64_t width = tensor.size(3);
  const int64_t row = tensor.size(1) * width;
  return tensor.stride(3) == 1 && tensor.stride(1) == width && tensor.stride(2) == row &&
         tensor.stride(0) == tensor.size(2) * row;
}

// Gradients of the queries are added up in float32, in tiles with a lock each, and so are those of
// keys and values if heads of 16-bit numbers are wider than 128. The sums of the gradients' rows
// are kept; for float32 they are made of a product in a tensor. Source:
// _efficient_attention_backward in aten/src/ATen/native/transformers/cuda/attention_backward.cu,
// and Params::workspace_size() in mem_eff_attention/kernel_backward.h beside it, with the tiles
// that GPUs of capability 8.0 and 9.0 choose. Operands: the gradient of the output, queries, keys,
// values.
BlockSizes efficientGradients(ArrayRef<Operand> operands, const GpuShape& /*gpu*/) {
  constexpr int64_t kLockSize = 4;  // in floats
  constexpr int64_t kMostSplits = 200;
  const TensorImpl& grad = *operands[0].tensor;
  const TensorImpl& query = *operands[1].tensor;
  const TensorImpl& value = *operands[3].tensor;
  if (query.dim() != 4) {
    return {};
  }
  const int64_t heads = query.size(0) * query.size(1);
  const int64_t rows = query.size(2);
  const int64_t width = query.size(3);
  const int64_t widest = std::max(width, value.size(3));
  const bool is_half = query.itemsize() <= 2;
  const int64_t tile_rows = widest <= 64 ? 64 : 128;
  const int64_t tile_columns = is_half && widest > 96 && widest <= 128 ? 128 : 64;
  const int64_t tiles = ceilDiv(rows, tile_rows) * ceilDiv(width, tile_columns);
  int64_t elements = tiles * (kLockSize + tile_rows * tile_columns);
  if (is_half && widest > 128) {
    const int64_t splits =
        std::max<int64_t>(1, std::min(ceilDiv(value.size(2), tile_columns), kMostSplits / heads));
    const auto padded =
        static_cast<int64_t>(roundUp(width, tile_rows) + roundUp(value.size(3), tile_rows));
    elements += splits * tile_columns * padded;
  }
  const auto workspace = static_cast<size_t>(heads * elements) * kFloatSize;
  const auto sums = static_cast<size_t>(heads * rows) * kFloatSize;
  const size_t product = sums * sizeOf(value, 3);
  BlockSizes sizes{sums, workspace};
  if (!is_half && product > workspace) {
    sizes = {sums, product};
  }
  if (!hasHeadsInside(grad)) {
    sizes.push_back(static_cast<size_t>(grad.numel()) * grad.itemsize());
  }
  return sizes;
}

// With many short rows, blocks of rows are added up first. Source:
// LaunchGammaBetaBackwardCUDAKernel in aten/src/ATen/native/cuda/layer_norm_kernel.cu. Operands:
// the gradient of the output, the input, the means, and the gradients last.
BlockSizes layerNormGradients(ArrayRef<Operand> operands, const GpuShape& gpu) {
  constexpr int64_t kManyRows = 64 * 1024;
  constexpr int64_t kBlock = 32;
  constexpr int64_t kMostBlocks = 32 * 1024;
  const int64_t rows = operands[2].tensor->numel();
  if (rows <= kManyRows) {
    return {};
  }
  const int64_t columns = operands[1].tensor->numel() / rows;
  if (columns / kBlock >= gpu.multiprocessors / 2) {
    return {};
  }
  const int64_t blocks = std::min(kMostBlocks / ceilDiv(columns, kBlock), ceilDiv(rows, kBlock));
  BlockSizes sizes;
  for (const Operand& operand : operands) {
    if (operand.is_written && operand.tensor->numel() == columns) {
      sizes.push_back(static_cast<size_t>(blocks * columns) * operand.tensor->itemsize());
    }
  }
  return sizes;
}

// Rows of more than 4,096 elements: indices, and CUB's buffers. Between 2 and 127 rows are sorted
// as one, with the number of its row beside each index. Source: sort_cuda_kernel in
// aten/src/ATen/native/cuda/Sort.cpp and do_launch_stable_sort_kernel in SortStable.cu there.
BlockSizes sortedRows(int64_t count, int64_t row, size_t element) {
  constexpr int64_t kSmallRow = 4096;
  constexpr int64_t kLargeRow = 1000000;
  constexpr int64_t kFewRows = 128;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (row <= kSmallRow) {
    return {};
  }
  const int64_t at_once = std::min(count, kMost / row * row);
  const int64_t rows = at_once / row;
  const auto both = [element](int64_t number) {
    return static_cast<size_t>(number) * (element + kLongSize);
  };
  if (rows == 1 || row >= kLargeRow) {
    return {static_cast<size_t>(row) * kLongSize, both(row)};
  }
  const size_t indices = static_cast<size_t>(at_once) * kLongSize;
  if (rows < kFewRows) {
    return {indices, indices, static_cast<size_t>(at_once) * element, both(at_once)};
  }
  return {indices, both(at_once)};
}

// Sorts along the last dimension; of others, the copies are unknown. Operands: the sorted elements,
// the indices, and the elements.
BlockSizes sorted(ArrayRef<Operand> operands, const GpuShape& /*gpu*/) {
  const TensorImpl& self = *operands[2].tensor;
  return self.dim() == 0 ? BlockSizes()
                         : sortedRows(self.numel(), self.size(self.dim() - 1), self.itemsize());
}

size_t totalOf(const BlockSizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
}

// The dimension along which the largest are sought: the one in which the sizes differ.
int64_t soughtDimension(const TensorImpl& self, const TensorImpl& found) {
  int64_t dim = self.dim() - 1;
  while (dim > 0 && self.size(dim) == found.size(dim)) {
    --dim;
  }
  return self.size(dim) == found.size(dim) ? self.dim() - 1 : dim;
}

// Whether several blocks of threads share a row.
bool isRowShared(int64_t rows, int64_t row) {
  struct Limit {
    int64_t rows;  // below this number
    int64_t row;   // a row of at least this size is shared
  };
  constexpr std::array<Limit, 6> kLimits{
      {{21, 20000}, {41, 10000}, {81, 8000}, {200, 5000}, {800, 3000}, {4001, 800}}};
  for (const Limit& limit : kLimits) {
    if (rows < limit.rows) {
      return row >= limit.row;
    }
  }
  return row >= 400;
}

// Digits of 8 bits are counted for each block of 256 threads; more than 4,096 found elements are
// sorted. Source: mbtopk::launch and should_use_multiblock in
// aten/src/ATen/native/cuda/TensorTopK.cu, topk_out_cuda in TensorTopK.cpp there. A multiprocessor
// has 65,536 registers, on all GPUs of the profiles. Operands: the found elements, their indices,
// and the elements.
BlockSizes largestElements(ArrayRef<Operand> operands, const GpuShape& gpu) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kRegisters = 40 * kThreads;
  constexpr int64_t kDigits = 256;
  const TensorImpl& found = *operands[0].tensor;
  const TensorImpl& self = *operands[2].tensor;
  if (self.dim() == 0 || self.numel() == 0 || found.numel() == 0) {
    return {};
  }
  const int64_t dim = soughtDimension(self, found);
  const int64_t row = self.size(dim);
  const int64_t rows = self.numel() / row;
  BlockSizes sizes;
  if (isRowShared(rows, row)) {
    const int64_t threads = gpu.multiprocessors * (65536 / kRegisters) * kThreads;
    const int64_t items = std::clamp<int64_t>(ceilDiv(self.numel(), threads), 4, 64);
    const auto blocks = static_cast<size_t>(rows * ceilDiv(row, items * kThreads));
    const size_t element = self.itemsize();
    const auto count = static_cast<size_t>(rows);
    sizes = {count * element,
             2 * count * sizeof(int32_t),
             2 * count * std::max(element, sizeof(int32_t)),
             blocks * kDigits * sizeof(int16_t),
             count * kDigits * sizeof(int32_t),
             blocks * sizeof(int32_t),
             blocks * sizeof(int32_t)};
  }
  if (!self.is_contiguous()) {
    sizes.push_back(static_cast<size_t>(self.numel()) * self.itemsize());
  }
  BlockSizes of_sort = sortedRows(found.numel(), found.size(dim), found.itemsize());
  if (!of_sort.empty()) {
    const auto count = static_cast<size_t>(found.numel());
    of_sort.append({count * kLongSize, count * found.itemsize()});
  }
  return totalOf(of_sort) > totalOf(sizes) ? of_sort : sizes;
}

// The number of elements of a shape to which several tensors are broadcast.
int64_t broadcastNumel(ArrayRef<Operand> operands) {
  SmallVector<int64_t, 5> reversed;
  for (const Operand& operand : operands) {
    const TensorImpl& tensor = *operand.tensor;
    const auto dims = static_cast<size_t>(tensor.dim());
    reversed.resize(std::max(reversed.size(), dims), 1);
    for (size_t i = 0; i < dims; ++i) {
      const int64_t size = tensor.size(static_cast<int64_t>(dims - 1 - i));
      reversed[i] = size == 1 ? reversed[i] : size;
    }
  }
  return std::accumulate(reversed.begin(), reversed.end(), int64_t{1}, std::multiplies<>());
}

// Values are added in the order of sorted indices: there are linear indices and numbers, and both
// sorted, besides contiguous copies. Source: index_put_with_sort_kernel in
// aten/src/ATen/native/cuda/Indexing.cu. Operands: the tensor, indices, and the values. Left out:
// the expansion of values, and a copy of a tensor whose indexed dimensions are not neighbors.
BlockSizes accumulatedValues(ArrayRef<Operand> operands, const GpuShape& /*gpu*/) {
  const TensorImpl& self = *operands.front().tensor;
  const TensorImpl& values = *operands.back().tensor;
  if (!operands.front().is_updated || self.numel() == 0) {
    return {};
  }
  const auto count = static_cast<size_t>(broadcastNumel(operands.slice(1, operands.size() - 2)));
  BlockSizes sizes(4, count * kLongSize);
  sizes.push_back(2 * count * kLongSize);  // CUB's
  for (const TensorImpl* tensor : {&self, &values}) {
    if (!tensor->is_contiguous()) {
      sizes.push_back(static_cast<size_t>(tensor->numel()) * tensor->itemsize());
    }
  }
  return count == 0 ? BlockSizes() : sizes;
}

}  // namespace

TemporaryMemoryRule temporaryMemoryRule(std::string_view kernel) {
  static const std::unordered_map<std::string_view, TemporaryMemoryRule> rules{
      {"aten::_flash_attention_backward", &flashAttentionGradients},
      {"aten::_scaled_dot_product_flash_attention_backward", &scaledProductGradients},
      {"aten::_scaled_dot_product_efficient_attention_backward", &efficientGradients},
      {"aten::_index_put_impl_", &accumulatedValues},
      {"aten::embedding_dense_backward", &embeddingGradients},
      {"aten::_fused_rms_norm_backward", &layerNormGradients},
      {"aten::native_layer_norm_backward", &layerNormGradients},
      {"aten::sort", &sorted},
      {"aten::topk", &largestElements},
  };
  const auto found = rules.find(kernel);
  return found == rules.end() ? nullptr : found->second;
}

}  // namespace c10::openreg
