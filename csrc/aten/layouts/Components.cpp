#include "csrc/aten/layouts/Components.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <algorithm>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using at::native::NestedTensorImpl;
using at::sparse_csr::get_sparse_csr_impl;

// The keys of a functionality for tensors on the device of `component`.
DispatchKeySet keysFor(DispatchKey functionality, const Tensor& component) {
  const BackendComponent backend =
      component.is_cpu() ? BackendComponent::CPUBit : c10::openreg::kBackendComponent;
  return DispatchKeySet(c10::toRuntimePerBackendFunctionalityKey(functionality, backend));
}

// A view of the memory of `tensor` with another type and shape.
Tensor viewMemory(const Tensor& tensor, ScalarType dtype, IntArrayRef sizes, IntArrayRef strides,
                  int64_t storage_offset) {
  auto impl = c10::make_intrusive<TensorImpl>(
      Storage(tensor.unsafeGetTensorImpl()->unsafe_storage()), keysFor(DispatchKey::Dense, tensor),
      c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides, storage_offset);
  return Tensor(std::move(impl));
}

Tensor bufferOf(const Tensor& nested) {
  const auto size =
      static_cast<int64_t>(at::native::get_nested_tensor_impl(nested)->get_buffer_size());
  return viewMemory(nested, nested.scalar_type(), {size}, {1}, 0);
}

// Whether several elements share a byte, so that sizes and strides do not describe the memory.
bool isPacked(const Tensor& quantized) {
  return quantized.scalar_type() == kQUInt4x2 || quantized.scalar_type() == kQUInt2x4;
}

Tensor integersOf(const Tensor& quantized) {
  if (isPacked(quantized)) {
    const auto nbytes = static_cast<int64_t>(quantized.storage().nbytes());
    return viewMemory(quantized, kByte, {nbytes}, {1}, 0);
  }
  return viewMemory(quantized, c10::toUnderlying(quantized.scalar_type()), quantized.sizes(),
                    quantized.strides(), quantized.storage_offset());
}

// A quantizer for a tensor on `device`, like that of `model`. It owns its tensors, because those of
// a quantizer made by a kernel may alias the arguments' memory.
QuantizerPtr quantizerFor(c10::Device device, const Tensor& model) {
  QuantizerPtr quantizer = at::get_qtensorimpl(model)->quantizer();
  if (device.is_cpu()) {
    return quantizer;
  }
  if (const auto* channels = dynamic_cast<const PerChannelAffineQuantizer*>(quantizer.get())) {
    const Tensor scales = channels->scales().clone();
    const Tensor points = channels->zero_points().clone();
    if (quantizer->qscheme() == kPerChannelAffineFloatQParams) {
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

// The elements have the memory layout of the components, except for packed elements.
void describeQuantized(const Tensor& tensor, const Tensor& model, const Tensor& integers) {
  const Tensor& described = isPacked(model) ? model : integers;
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(described.sizes(), described.strides(),
                                                      described.storage_offset());
}

bool areSame(const std::vector<Tensor>& some, const std::vector<Tensor>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const Tensor& one, const Tensor& other) { return one.is_same(other); });
}

// Whether assembleInto() would change nothing. A tensor that is only read must not be written,
// because other threads may read it at the same time.
bool isAssembled(const Tensor& tensor, const Tensor& model, const std::vector<Tensor>& components) {
  if (tensor.is_sparse()) {
    const auto* impl = implOf<SparseTensorImpl>(tensor);
    const auto* metadata = implOf<SparseTensorImpl>(model);
    return impl->sizes() == metadata->sizes() && impl->sparse_dim() == metadata->sparse_dim() &&
           impl->dense_dim() == metadata->dense_dim() &&
           impl->coalesced() == metadata->coalesced() && areSame(componentsOf(tensor), components);
  }
  if (at::sparse_csr::is_sparse_compressed(tensor)) {
    return tensor.sizes() == model.sizes() && areSame(componentsOf(tensor), components);
  }
  const Tensor& memory = components.front();
  if (!memory.is_alias_of(tensor)) {
    return false;
  }
  if (tensor.is_quantized()) {
    const Tensor& described = isPacked(model) ? model : memory;
    return at::get_qtensorimpl(tensor)->quantizer() == at::get_qtensorimpl(model)->quantizer() &&
           tensor.sizes() == described.sizes() && tensor.strides() == described.strides() &&
           tensor.storage_offset() == described.storage_offset();
  }
  return true;  // ATen never changes a nested tensor's shape in place
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
    return {integersOf(tensor)};
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
    Tensor tensor = at::detail::make_tensor<QTensorImpl>(
        Storage(memory.storage()), keysFor(DispatchKey::Quantized, memory), dtype,
        quantizerFor(memory.device(), model));
    describeQuantized(tensor, model, memory);
    return tensor;
  }
  const auto* nested = at::native::get_nested_tensor_impl(model);
  // As with the quantizer: a result owns the tensors that describe it.
  const auto own = [&](const Tensor& shape) { return memory.is_cpu() ? shape : shape.clone(); };
  return at::detail::make_tensor<NestedTensorImpl>(
      Storage(memory.storage()),
      keysFor(DispatchKey::NestedTensor, memory).add(DispatchKey::AutogradNestedTensor), dtype,
      own(nested->get_nested_sizes()), own(nested->get_nested_strides()),
      own(nested->get_storage_offsets()));
}

void assembleInto(const Tensor& tensor, const Tensor& model,
                  const std::vector<Tensor>& components) {
  if (isAssembled(tensor, model, components)) {
    return;
  }
  if (tensor.is_sparse()) {
    assembleCoo(implOf<SparseTensorImpl>(tensor), model, components);
  } else if (at::sparse_csr::is_sparse_compressed(tensor)) {
    get_sparse_csr_impl(tensor)->set_member_tensors(components[0], components[1], components[2],
                                                    model.sizes());
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(components.front().is_alias_of(tensor), "openreg: expected a ",
                                tensor.is_quantized() ? "quantized" : "nested",
                                " tensor to keep its memory when it is written in place");
    implOf<QTensorImpl>(tensor)->set_quantizer_(quantizerFor(tensor.device(), model));
    describeQuantized(tensor, model, components.front());
  }
}

}  // namespace at::openreg
