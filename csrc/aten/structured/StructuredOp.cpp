#include "csrc/aten/structured/StructuredOp.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/index_cpu_dispatch.h>

#include <algorithm>

#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"

namespace at::openreg {

namespace {

template <typename Property>
void checkInPlaceProperty(const char* name, const Property& given, const Property& wanted) {
  TORCH_CHECK(given == wanted, "Bad in-place call: input tensor ", name, " ", given,
              " and output tensor ", name, " ", wanted, " should match");
}

// A TensorIterator checks these itself; shape functions without one rely on this check.
void checkInPlace(const Tensor& self, IntArrayRef sizes, const TensorOptions& options) {
  checkInPlaceProperty("dtype", self.dtype(), options.dtype());
  checkInPlaceProperty("device", self.device(), options.device());
  checkInPlaceProperty("size", self.sizes(), sizes);
}

void resizeOut(const Tensor& out, IntArrayRef sizes, IntArrayRef strides,
               const TensorOptions& options) {
  TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(),
              ", but got ", out.dtype(), " instead");
  TORCH_CHECK(options.device() == out.device(), "Expected out tensor to have device ",
              options.device(), ", but got ", out.device(), " instead");
  if (!at::native::resize_output(out, sizes)) {
    return;  // keeps the caller's strides
  }
  if (!strides.empty()) {
    out.as_strided_(sizes, strides);
  } else if (const auto memory_format = options.memory_format_opt()) {
    out.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
}

}  // namespace

void OutputProvider::provide(Tensor& allocated, const Tensor& given, IntArrayRef sizes,
                             IntArrayRef strides, const TensorOptions& options) {
  if (C10_UNLIKELY(options.device().index() != c10::openreg::current_device())) {
    guard_.reset_device(options.device());
  }
  if (form_ == OutputForm::InPlace) {
    checkInPlace(given, sizes, options);
  } else if (form_ == OutputForm::Out) {
    resizeOut(given, sizes, strides, options);
  } else if (const ScalarType dtype = typeMetaToScalarType(options.dtype()); strides.empty()) {
    allocated = emptyOnCurrentDevice(sizes, dtype, options.memory_format_opt());
  } else {
    allocated = emptyStridedOnCurrentDevice(sizes, strides, dtype);
  }
}

void setMemoryFormat(const Tensor& output, const Tensor& model) {
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(
      output.sizes(), output.itemsize(), output.storage_offset());
  TORCH_CHECK(
      nbytes <= output.storage().nbytes(), "out=: expected a tensor with a storage of ", nbytes,
      " bytes or more, because the kernel gives it the memory format of the input, got one of ",
      output.storage().nbytes(), " bytes");
  output.unsafeGetTensorImpl()->empty_tensor_restride(model.suggest_memory_format());
}

void setConjugate(const Tensor& output, bool condition) {
  if (condition && output.is_complex() && output.numel() > 0) {
    output.unsafeGetTensorImpl()->_set_conj(true);
  }
}

void checkAddcmulNumbers(const Tensor& self, const Tensor& tensor1) {
  if (!c10::openreg::servesCuda()) {
    return;
  }
  const auto is_cpu_number = [](const Tensor& tensor) {
    return tensor.is_cpu() && tensor.numel() == 1;
  };
  TORCH_CHECK(!is_cpu_number(self),
              "CPU Scalar support for self argument is not supported when calling addcmul on CUDA "
              "tensors.");
  TORCH_CHECK(
      !is_cpu_number(tensor1),
      "CPU Scalar support for tensor1 argument is not supported when calling addcmul on "
      "CUDA tensors. However, CPU Scalar support for tensor2 is supported, please swap your "
      "tensor1 and tensor2 terms.");
}

c10::List<std::optional<Tensor>> deviceIndices(const Tensor& self,
                                               const c10::List<std::optional<Tensor>>& indices) {
  const auto is_ready = [&](const std::optional<Tensor>& index) {
    return !index.has_value() || !index->defined() ||
           (index->device() == self.device() && index->scalar_type() != kBool &&
            index->scalar_type() != kByte);
  };
  const auto is_elsewhere = [&](const std::optional<Tensor>& index) {
    return index.has_value() && index->defined() && !index->is_cpu() &&
           index->device() != self.device();
  };
  // The shape function rejects a list that is too long, device indices for a CPU tensor, and those
  // of another device; expanding the indices would fail with a less helpful error, or copy them.
  const bool is_wrong = static_cast<int64_t>(indices.size()) > self.dim() || !isOpenReg(self) ||
                        std::any_of(indices.begin(), indices.end(), is_elsewhere);
  if (is_wrong || std::all_of(indices.begin(), indices.end(), is_ready)) {
    return indices;
  }
  return at::native::toListOfOptionalTensors(
      at::native::expandTensors(self, indices, /*ensure_same_device=*/true));
}

void checkIndexes(ScalarType dtype) {
  static CheckedDtypes checked;
  checked.check(dtype, [&] { at::cpu::index(dummy(dtype, {1}), {dummy(kLong, {1})}); });
}

}  // namespace at::openreg
