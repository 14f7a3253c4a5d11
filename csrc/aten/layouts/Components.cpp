#include "csrc/aten/layouts/Components.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

namespace at::openreg {
namespace {

using at::native::NestedTensorImpl;
using at::sparse_csr::get_sparse_csr_impl;

DispatchKeySet keysFor(DispatchKey functionality, const Tensor& component) {
  const BackendComponent backend =
      component.is_cpu() ? BackendComponent::CPUBit : BackendComponent::PrivateUse1Bit;
  return DispatchKeySet(c10::toRuntimePerBackendFunctionalityKey(functionality, backend));
}

// A view of the memory of `tensor` with another type and shape.
Tensor viewMemory(const Tensor& tensor, ScalarType dtype, IntArrayRef sizes, IntArrayRef strides,
                  int64_t storage_offset) {
  auto impl = c10::make_intrusive<TensorImpl>(
      Storage(tensor.unsafeGetTensorImpl()->unsafe_storage()),
      DispatchKeySet(c10::toRuntimePerBackendFunctionalityKey(
          DispatchKey::Dense,
          tensor.is_cpu() ? BackendComponent::CPUBit : BackendComponent::PrivateUse1Bit)),
      c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides, storage_offset);
  return Tensor(std::move(impl));
}

Tensor bufferOf(const Tensor& nested) {
  const auto size =
      static_cast<int64_t>(at::native::get_nested_tensor_impl(nested)->get_buffer_size());
  return viewMemory(nested, nested.scalar_type(), {size}, {1}, 0);
}

// A quantizer whose tensors are its own: those of a kernel's result may lie in the arguments'
// memory.
QuantizerPtr ownQuantizer(const Tensor& quantized) {
  QuantizerPtr quantizer = at::get_qtensorimpl(quantized)->quantizer();
  if (const auto* channels = dynamic_cast<const PerChannelAffineQuantizer*>(
          quantizer.get())) {  // or with float points
    const bool has_float_points = quantizer->qscheme() == kPerChannelAffineFloatQParams;
    const Tensor scales = channels->scales().clone();
    const Tensor points = channels->zero_points().clone();
    if (has_float_points) {
      return c10::make_intrusive<PerChannelAffineFloatQParamsQuantizer>(
          quantizer->scalar_type(), scales, points, channels->axis());
    }
    return c10::make_intrusive<PerChannelAffineQuantizer>(quantizer->scalar_type(), scales, points,
                                                          channels->axis());
  }
  return quantizer;
}

template <typename Impl>
Impl* implOf(const Tensor& tensor) {
  return static_cast<Impl*>(tensor.unsafeGetTensorImpl());
}

void assembleCoo(SparseTensorImpl* impl, const Tensor& model, const std::vector<Tensor>& parts) {
  const auto* metadata = implOf<SparseTensorImpl>(model);
  impl->raw_resize_(metadata->sparse_dim(), metadata->dense_dim(), metadata->sizes());
  impl->set_indices_and_values_unsafe(parts[0], parts[1]);
  impl->set_coalesced(metadata->coalesced());
}

}  // namespace

bool isPlain(const Tensor& tensor) {
  return tensor.layout() == kStrided && !tensor.is_quantized() && !tensor.is_nested();
}

std::vector<Tensor> componentsOf(const Tensor& tensor) {
  if (tensor.is_sparse()) {
    const auto* impl = implOf<SparseTensorImpl>(tensor);
    return {impl->indices(), impl->values()};
  }
  if (at::sparse_csr::is_sparse_compressed(tensor)) {
    const auto* impl = get_sparse_csr_impl(tensor);
    return {impl->compressed_indices(), impl->plain_indices(), impl->values()};
  }
  if (tensor.is_quantized()) {
    return {viewMemory(tensor, c10::toUnderlying(tensor.scalar_type()), tensor.sizes(),
                       tensor.strides(), tensor.storage_offset())};
  }
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_nested() && tensor.layout() == kStrided,
                              "openreg: expected a strided, sparse, quantized or nested tensor, "
                              "got one of layout ",
                              tensor.layout());
  return {bufferOf(tensor)};
}

Tensor assemble(const Tensor& model, const std::vector<Tensor>& components) {
  const auto dtype = model.dtype();
  if (model.is_sparse()) {
    Tensor tensor = at::detail::make_tensor<SparseTensorImpl>(
        keysFor(DispatchKey::Sparse, components[1]), dtype);
    assembleCoo(implOf<SparseTensorImpl>(tensor), model, components);
    return tensor;
  }
  if (at::sparse_csr::is_sparse_compressed(model)) {
    Tensor tensor =
        at::detail::make_tensor<SparseCsrTensorImpl>(keysFor(DispatchKey::SparseCsr, components[2]),
                                                     components[2].device(), model.layout(), dtype);
    get_sparse_csr_impl(tensor)->set_member_tensors(components[0], components[1], components[2],
                                                    model.sizes());
    return tensor;
  }
  const Tensor& memory = components.front();
  if (model.is_quantized()) {
    Tensor tensor = at::detail::make_tensor<QTensorImpl>(Storage(memory.storage()),
                                                         keysFor(DispatchKey::Quantized, memory),
                                                         dtype, ownQuantizer(model));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(memory.sizes(), memory.strides(),
                                                        memory.storage_offset());
    return tensor;
  }
  const auto* nested = at::native::get_nested_tensor_impl(model);
  return at::detail::make_tensor<NestedTensorImpl>(
      Storage(memory.storage()),
      keysFor(DispatchKey::NestedTensor, memory).add(DispatchKey::AutogradNestedTensor), dtype,
      nested->get_nested_sizes(), nested->get_nested_strides(), nested->get_storage_offsets());
}

void assembleInto(const Tensor& tensor, const Tensor& model,
                  const std::vector<Tensor>& components) {
  if (tensor.is_sparse()) {
    assembleCoo(implOf<SparseTensorImpl>(tensor), model, components);
  } else if (at::sparse_csr::is_sparse_compressed(tensor)) {
    get_sparse_csr_impl(tensor)->set_member_tensors(components[0], components[1], components[2],
                                                    model.sizes());
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(components.front().is_alias_of(tensor), "openreg: expected a ",
                                tensor.is_quantized() ? "quantized" : "nested",
                                " tensor to keep its memory when it is written in place");
    if (tensor.is_quantized()) {
      implOf<QTensorImpl>(tensor)->set_quantizer_(ownQuantizer(model));
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(components.front().sizes(),
                                                          components.front().strides(),
                                                          components.front().storage_offset());
    }
  }
}

}  // namespace at::openreg
