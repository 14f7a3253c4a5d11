#include "csrc/extras/dry_run/SparseResults.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace at::openreg {
namespace {

bool isSparse(const c10::IValue& value) { return value.isTensor() && value.toTensor().is_sparse(); }

// A new tensor of the first `count` indices and values.
Tensor coalesced(const Tensor& self, int64_t count) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(
      self.sparse_dim(), self.dense_dim(), self.sizes(),
      self._indices().narrow(1, 0, count).clone(at::MemoryFormat::Contiguous),
      self._values().narrow(0, 0, count).clone(at::MemoryFormat::Contiguous), self.options(),
      /*is_coalesced=*/true);
}

// Gives the sum the indices and values of both. The CPU merges those that it finds at one place.
void join(const Tensor& self, const Tensor& other, const GuessNumber& guess, const Tensor& sum) {
  const int64_t count = guess(self._nnz() + other._nnz(), std::max(self._nnz(), other._nnz()));
  const int64_t added = count - self._nnz();
  const bool are_coalesced = self.is_coalesced() && other.is_coalesced();
  const ScalarType dtype = at::result_type(self, other);
  const Tensor values =
      at::cat({self._values().to(dtype), other._values().narrow(0, 0, added).to(dtype)});
  at::sparse::get_sparse_impl(sum)->set_indices_and_values_unsafe(
      at::cat({self._indices(), other._indices().narrow(1, 0, added)}, 1),
      values.to(sum.scalar_type()));
  sum._coalesced_(are_coalesced);
}

}  // namespace

bool composeSparse(const BoxedCall& call, torch::jit::Stack* stack, const GuessNumber& guess) {
  const std::string_view name = call.known().name();
  const bool is_sum = name == "aten::add.Tensor" || name == "aten::sub.Tensor";
  const bool is_added = name == "aten::add_.Tensor" || name == "aten::sub_.Tensor";
  Tensor result;
  if (name == "aten::_coalesce") {
    const Tensor self = call.argument(0).toTensor();
    const int64_t all = self._nnz();
    result = coalesced(self, guess(all, std::min<int64_t>(all, 1)));
  } else if ((is_sum || is_added) && isSparse(call.argument(0)) && isSparse(call.argument(1))) {
    const Tensor self = call.argument(0).toTensor();
    const Tensor other = call.argument(1).toTensor();
    result = is_added ? self : at::empty_like(self, at::result_type(self, other));
    join(self, other, guess, result);
  } else {
    return false;
  }
  torch::jit::drop(*stack, call.schema().arguments().size());
  stack->emplace_back(std::move(result));
  return true;
}

}  // namespace at::openreg
