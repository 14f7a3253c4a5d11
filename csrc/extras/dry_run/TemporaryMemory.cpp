#include "csrc/extras/dry_run/TemporaryMemory.h"

#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace c10::openreg {
namespace {

constexpr size_t kFloatSize = 4;
constexpr size_t kLongSize = 8;

size_t roundUp(int64_t number, int64_t multiple) {
  return static_cast<size_t>((number + multiple - 1) / multiple * multiple);
}

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
BlockSizes scaledProductGradients(ArrayRef<Operand> operands) {
  const TensorImpl& query = *operands[1].tensor;
  return query.dim() == 4 ? flashGradients(query, *operands[2].tensor, /*heads_at=*/1,
                                           /*length_at=*/2)
                          : BlockSizes();
}

BlockSizes flashAttentionGradients(ArrayRef<Operand> operands) {
  const TensorImpl& query = *operands[1].tensor;
  return query.dim() == 4 ? flashGradients(query, *operands[2].tensor, /*heads_at=*/2,
                                           /*length_at=*/1)
                          : BlockSizes();
}

// The indices are sorted, and the gradients of equal ones are added up in parts of ten. Source:
// embedding_dense_backward_cuda in aten/src/ATen/native/cuda/Embedding.cu, whose kernel for few
// indices needs nothing, and EmbeddingBackwardKernel.cu. Operands: the gradient of the output, the
// indices, and the result.
BlockSizes embeddingGradients(ArrayRef<Operand> operands) {
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

// One row of more than 4,096 elements: indices from 0, and CUB's buffers. Source:
// segmented_sort_large_segments in aten/src/ATen/native/cuda/SortStable.cu. Several rows are sorted
// in other ways, for which there is no rule. Operand: the elements.
BlockSizes sortedRow(ArrayRef<Operand> operands) {
  constexpr int64_t kSmallRow = 4096;
  const TensorImpl& self = *operands[0].tensor;
  if (self.dim() != 1 || self.numel() <= kSmallRow) {
    return {};
  }
  const auto count = static_cast<size_t>(self.numel());
  return {count * kLongSize, count * (self.itemsize() + kLongSize)};
}

}  // namespace

TemporaryMemoryRule temporaryMemoryRule(std::string_view kernel) {
  static const std::unordered_map<std::string_view, TemporaryMemoryRule> rules{
      {"aten::_flash_attention_backward", &flashAttentionGradients},
      {"aten::_scaled_dot_product_flash_attention_backward", &scaledProductGradients},
      {"aten::embedding_dense_backward", &embeddingGradients},
      {"aten::sort", &sortedRow},
  };
  const auto found = rules.find(kernel);
  return found == rules.end() ? nullptr : found->second;
}

}  // namespace c10::openreg
