// Operators on sparse, quantized and nested tensors. Each of these kinds has a dispatch key of its
// own. What only reads metadata or gives out a component is ATen's own; the rest is the fallback's.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/q_scale_native.h>
#include <ATen/ops/q_zero_point_native.h>
#include <ATen/ops/qscheme_native.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/layouts/Components.h"
#include "csrc/aten/ops/Copy.h"
#include "csrc/aten/ops/Factories.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {
namespace {

torch::CppFunction boxed() { return torch::CppFunction::makeFromBoxedFunction<&runFallback>(); }

// A fallback yields to kernels that are composed of other operators, and ATen has some that only
// say that a backend lacks its own. So what the CPU has a kernel for is registered by name.
void registerOperatorsOf(c10::DispatchKey cpu_key, c10::DispatchKey key, torch::Library& m) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && name.getNamespace() == "aten" && op->hasKernelForDispatchKey(cpu_key) &&
        !op->hasKernelForDispatchKey(key)) {
      m.impl(c10::toString(name).c_str(), boxed());
    }
  }
}

// Uninitialised integers with the quantizer of `model`, on the device asked for.
Tensor emptyQuantized(IntArrayRef size, const Tensor& model, std::optional<ScalarType> dtype,
                      std::optional<Layout> layout, std::optional<Device> device,
                      std::optional<bool> pin_memory, std::optional<MemoryFormat> memory_format) {
  TORCH_CHECK(!dtype.has_value() || *dtype == model.scalar_type(), "empty_quantized: expected ",
              model.scalar_type(), ", the type of the quantized tensor given, got ", *dtype);
  const Tensor integers = at::empty(size, c10::toUnderlying(model.scalar_type()), layout,
                                    device.value_or(model.device()), pin_memory, memory_format);
  return assemble(model, {integers});
}

// Between devices, or between tensors with quantizers of their own: the integers and the quantizer.
Tensor& copyQuantized(Tensor& self, const Tensor& source, bool non_blocking) {
  if (!source.is_quantized()) {
    TORCH_CHECK(isOpenReg(self), "copy_: expected a quantized tensor for a copy to ", self.device(),
                ", got one of ", source.scalar_type());
    const Tensor on_device = source.to(self.device(), non_blocking);
    const Tensor quantized =
        at::quantize_per_tensor(on_device, self.q_scale(), self.q_zero_point(), self.scalar_type());
    return copyQuantized(self, quantized, non_blocking);
  }
  TORCH_CHECK(self.is_quantized() && self.scalar_type() == source.scalar_type() &&
                  self.qscheme() == source.qscheme(),
              "copy_: expected a tensor quantized as ", source.scalar_type(), ", got ",
              self.scalar_type());
  Tensor integers = componentsOf(self).front();
  copy(integers, componentsOf(source).front(), non_blocking);
  assembleInto(self, source, {integers});
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(boxed()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(boxed()); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) { m.fallback(boxed()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(boxed()); }

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  registerOperatorsOf(c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1, m);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  registerOperatorsOf(c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::SparseCsrPrivateUse1, m);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("copy_", TORCH_FN(copyQuantized));
  m.impl("empty_quantized", TORCH_FN(emptyQuantized));
  m.impl("q_scale", TORCH_FN(at::native::q_scale_quant));
  m.impl("q_zero_point", TORCH_FN(at::native::q_zero_point_quant));
  m.impl("qscheme", TORCH_FN(at::native::qscheme_quant));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(setStorage));
  registerOperatorsOf(c10::DispatchKey::QuantizedCPU, c10::DispatchKey::QuantizedPrivateUse1, m);
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_to_copy", TORCH_FN(at::native::_to_copy_nested));
  m.impl("copy_", TORCH_FN(at::native::copy_nested_));
  registerOperatorsOf(c10::DispatchKey::NestedTensorCPU, c10::DispatchKey::NestedTensorPrivateUse1,
                      m);
}

}  // namespace at::openreg
