// Operators on sparse tensors, of coordinates (COO) and compressed (CSR, CSC, BSR, BSC). Those that
// only read metadata or return a component are ATen's; those that CUDA shares with the CPU call
// operators on components; the others use the fallback.

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include <array>
#include <utility>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/fallback/LayoutFallback.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::native {

// Exported by torch, which has no header of it for others.
__attribute__((weak)) Tensor& _mul_dense_sparse_out(const Tensor& dense, const Tensor& sparse,
                                                    Tensor& out);

}  // namespace at::native

namespace at::openreg {
namespace {

// For each column of `indices`, the linear index in a tensor of `size`, by which columns are
// checked for order and duplicates.
Tensor flattenIndices(const Tensor& indices, IntArrayRef size) {
  Tensor places = indices.select(0, 0).clone();
  for (int64_t dim = 1; dim < indices.size(0); ++dim) {
    places.mul_(size[static_cast<size_t>(dim)]).add_(indices.select(0, dim));
  }
  return places;
}

// CUDA's words for tensors on the CPU, of which openreg's are in the fallback.
void checkTermsOnCuda(const Tensor& self, const Tensor& other) {
  const std::array<std::pair<const char*, const Tensor*>, 2> terms{
      {{"self", &self}, {"other", &other}}};
  const bool is_dense = self.layout() == kStrided;
  TORCH_CHECK(is_dense || other.layout() != kStrided,
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  for (const auto& [name, tensor] : terms) {
    TORCH_CHECK(!is_dense || !tensor->is_cpu(), "add: expected '", name,
                "' to be a CUDA tensor, but got a CPU tensor");
    TORCH_CHECK(!tensor->is_cpu(), "add: expected '", name, "' to be CUDA, but got CPU");
  }
}

// The CPU adds numbers of bfloat16 only if those of both tensors are contiguous. Those of a
// gradient may be expanded.
void makeContiguous(c10::IValue& value) {
  const Tensor tensor = value.toTensor();
  if (tensor.is_sparse() && tensor.scalar_type() == kBFloat16 &&
      !tensor._values().is_contiguous()) {
    value = at::_sparse_coo_tensor_with_dims_and_tensors(
        tensor.sparse_dim(), tensor.dense_dim(), tensor.sizes(), tensor._indices(),
        tensor._values().contiguous(), tensor.options(), tensor.is_coalesced());
  }
}

// Whether CUDA joins the elements of two terms, in the dtype of `result`. The CPU has the same
// results for an empty term, and the errors.
bool joinsOnCuda(const Tensor& self, const Tensor& other, const Scalar& alpha, ScalarType result) {
  return self.is_sparse() && other.is_sparse() && self.sizes() == other.sizes() &&
         self.sparse_dim() == other.sparse_dim() && self._nnz() > 0 && other._nnz() > 0 &&
         result == at::result_type(self, other) && result != kBool &&
         (alpha.isIntegral(/*includeBool=*/true) || !isIntegralType(result, /*includeBool=*/true));
}

// The sum has the elements of both, where the CPU merges those that it finds at one place. They are
// merged if there are more than the tensor has places.
void joinOnCuda(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& sum) {
  const ScalarType dtype = sum.scalar_type();
  Tensor values = other._values().to(dtype);
  if (!alpha.equal(1)) {
    values = values.mul(alpha);
  }
  const auto set = [&](const Tensor& new_indices, const Tensor& new_values) {
    at::sparse::get_sparse_impl(sum)->set_indices_and_values_unsafe(new_indices, new_values);
  };
  set(at::cat({self._indices(), other._indices()}, 1), at::cat({self._values().to(dtype), values}));
  sum._coalesced_(false);
  if (sum._nnz() > sum.numel()) {
    const Tensor coalesced = sum.coalesce();
    set(coalesced._indices(), coalesced._values());
  }
}

void add(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const bool is_in_place = isWritten(op.schema().arguments()[0]);
  if (c10::openreg::servesCuda()) {
    const Tensor self = (*stack)[first].toTensor();
    const Tensor other = (*stack)[first + 1].toTensor();
    const Scalar factor = (*stack)[first + 2].toScalar();
    const Scalar alpha = op.schema().name().starts_with("aten::sub") ? -factor : factor;
    const ScalarType dtype = is_in_place ? self.scalar_type() : at::result_type(self, other);
    checkTermsOnCuda(self, other);
    if (joinsOnCuda(self, other, alpha, dtype)) {
      const c10::DeviceGuard guard(checkedDevice(op, keys, *stack));
      Tensor sum = is_in_place ? self : at::empty_like(self, self.options().dtype(dtype));
      joinOnCuda(self, other, alpha, sum);
      torch::jit::drop(*stack, op.schema().arguments().size());
      stack->emplace_back(std::move(sum));
      return;
    }
  }
  if (!is_in_place) {
    makeContiguous((*stack)[first]);
  }
  makeContiguous((*stack)[first + 1]);
  runFallback(op, keys, stack);
}

// Products of a matrix of coordinates and a dense one, of which CUDA has fewer dtypes.
void product(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  bool has_dense = false;
  ScalarType dtype = ScalarType::Undefined;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      const Tensor& tensor = argument.toTensor();
      has_dense = has_dense || tensor.layout() == kStrided;
      dtype = tensor.layout() == kSparse ? tensor.scalar_type() : dtype;
    }
  }
  const bool is_batched = op.schema().name() == "aten::bmm";
  if (c10::openreg::servesCuda() && has_dense && dtype != kFloat && dtype != kDouble) {
    const bool is_complex = dtype == kComplexFloat || dtype == kComplexDouble;
    TORCH_CHECK(!is_batched || !is_complex, "Tensor types must be either float32 or float64");
    TORCH_CHECK_NOT_IMPLEMENTED(is_complex, '"', is_batched ? "bmm" : "addmm",
                                "_sparse_cuda\" not implemented for '", dtype, "'");
  }
  runFallback(op, keys, stack);
}

// A product of elements. The CPU's kernel is not CUDA's, but that of a sparse and a dense tensor is
// one function of both.
void mulOut(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const Tensor self = arguments[0].toTensor();
  const Tensor other = arguments[1].toTensor();
  if ((self.is_sparse() && other.is_sparse()) || &at::native::_mul_dense_sparse_out == nullptr) {
    runFallback(op, keys, stack);
    return;
  }
  const c10::DeviceGuard guard(checkedDevice(op, keys, *stack));
  Tensor out = arguments[2].toTensor();
  if (self.is_sparse()) {
    at::native::_mul_dense_sparse_out(other, self, out);
  } else {
    at::native::_mul_dense_sparse_out(self, other, out);
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(std::move(out));
}

// The elements of a tensor at those of a mask. If both are sparse, the function that CUDA and the
// CPU share has a table of kernels by device.
void sparseMask(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  if (arguments[0].toTensor().is_sparse()) {
    runFallback(op, keys, stack);
  } else {
    runSharedKernel(op, keys, stack);
  }
}

}  // namespace

// Of strided tensors, with sparse results.
OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  for (const char* name :
       {"_embedding_bag_backward", "_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_bsc",
        "_to_sparse_bsr", "_to_sparse_csc", "_to_sparse_csr"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&runSharedKernel>());
  }
}

OPENREG_LIBRARY_IMPL(_, Sparse, m) { m.fallback(layoutFallback()); }
OPENREG_LIBRARY_IMPL(_, SparseCsr, m) { m.fallback(layoutFallback()); }

OPENREG_LIBRARY_IMPL(aten, Sparse, m) {
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  // Copies between devices, too: they copy indices and values.
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  for (const char* name : {"add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&add>());
  }
  for (const char* name : {"sparse_mask", "_sparse_mask_projection"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&sparseMask>());
  }
  m.impl("mul.out", torch::CppFunction::makeFromBoxedFunction<&mulOut>());
  for (const char* name : {"addmm", "addmm.out", "addmm_", "bmm", "bmm.out", "hspmm", "hspmm.out",
                           "mm", "mm.out", "mv"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&product>());
  }
  registerLayoutFallback(c10::DispatchKey::Sparse, m);
}

OPENREG_LIBRARY_IMPL(aten, SparseCsr, m) {
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  registerLayoutFallback(c10::DispatchKey::SparseCsr, m);
}

}  // namespace at::openreg

namespace at::native {

// Composite kernels look these up by device. torch installs no header that declares them.
using flatten_indices_fn = Tensor (*)(const Tensor& indices, IntArrayRef size);
DECLARE_DISPATCH(flatten_indices_fn, flatten_indices_stub)

OPENREG_REGISTER_DISPATCH(flatten_indices_stub, &at::openreg::flattenIndices)

}  // namespace at::native
