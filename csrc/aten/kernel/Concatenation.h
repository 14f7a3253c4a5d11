// The concatenation of many small tensors.
//
// Note [Many small tensors]
// To make a CPU tensor of each of ten thousand arguments takes several times as long as to copy
// what is in them. So where tensors are alike and contiguous, their addresses are all that the
// kernel gets: it copies bytes, which are those that the CPU's kernel writes. Everything else,
// short lists included, goes the usual way, and so does all while the sanitizer is on, which looks
// at each tensor.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// How many tensors are no long list.
constexpr size_t kShortList = 16;

namespace detail {
OPENREG_EXPORT std::optional<Tensor> joinMany(const ITensorListRef& tensors, int64_t dim,
                                              bool is_stack);
}

// The result of aten::cat, or aten::stack, if these are many small tensors; enqueued on the current
// stream of their device. std::nullopt for all others, wrong ones among them.
inline std::optional<Tensor> catOfMany(const ITensorListRef& tensors, int64_t dim) {
  return tensors.size() <= kShortList ? std::nullopt : detail::joinMany(tensors, dim, false);
}
inline std::optional<Tensor> stackOfMany(const ITensorListRef& tensors, int64_t dim) {
  return tensors.size() <= kShortList ? std::nullopt : detail::joinMany(tensors, dim, true);
}

}  // namespace at::openreg
