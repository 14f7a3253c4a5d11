// The concatenation of many small tensors.
//
// Note [Many small tensors]
// Creating a CPU tensor for each of ten thousand arguments takes several times as long as copying
// their contents. So if the tensors are alike and contiguous, the kernel receives only their
// addresses. It copies bytes, and produces the same bytes as the CPU's kernel. All other calls,
// including short lists, take the usual path.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Throws unless the kernel of `aten::cat` joins tensors of these dtypes to `joined` along `dim`.
OPENREG_EXPORT void checkJoins(const Tensor& joined, const ITensorListRef& tensors, int64_t dim);

// Lists of up to this length are short.
constexpr size_t kShortList = 16;

namespace detail {
OPENREG_EXPORT std::optional<Tensor> joinMany(const ITensorListRef& tensors, int64_t dim,
                                              bool is_stack);
}

// The result of aten::cat, or aten::stack, if the arguments are many small tensors; enqueued on the
// current stream of their device. std::nullopt otherwise, also for invalid arguments.
inline std::optional<Tensor> catOfMany(const ITensorListRef& tensors, int64_t dim) {
  return tensors.size() <= kShortList ? std::nullopt : detail::joinMany(tensors, dim, false);
}
inline std::optional<Tensor> stackOfMany(const ITensorListRef& tensors, int64_t dim) {
  return tensors.size() <= kShortList ? std::nullopt : detail::joinMany(tensors, dim, true);
}

}  // namespace at::openreg
