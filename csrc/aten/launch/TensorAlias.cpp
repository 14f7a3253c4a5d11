#include "torch_openreg/aten/TensorAlias.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <openreg/memory.h>

#include <cstring>

#include "csrc/aten/launch/FirstPlaces.h"
#include "csrc/aten/launch/TensorPool.h"
#include "torch_openreg/core/Exception.h"

namespace at::openreg {
namespace {

void* kernelAddress(void* device_address) {
  return device_address == nullptr ? nullptr
                                   : static_cast<std::byte*>(device_address) + kernelOffset();
}

template <typename Element, typename List>
std::vector<TensorAlias> aliasEach(const List& tensors) {
  std::vector<TensorAlias> aliases;
  aliases.reserve(tensors.size());
  for (const Element& tensor : tensors) {
    aliases.emplace_back(tensor);
  }
  return aliases;
}

}  // namespace

TensorPool& TensorPool::ofThisThread() {
  thread_local TensorPool pool;
  return pool;
}

ptrdiff_t kernelOffset() {
  static const ptrdiff_t offset = [] {
    ptrdiff_t value = 0;
    OPENREG_CHECK(orGetKernelOffset(&value));
    return value;
  }();
  return offset;
}

void TensorAlias::setMetadata(const TensorBase& tensor) {
  TORCH_CHECK(tensor.layout() == kStrided && tensor.has_storage(),
              "openreg kernel: expected a tensor of strided layout, got one of layout ",
              tensor.layout(), " on ", tensor.device());
  const TensorImpl* impl = tensor.unsafeGetTensorImpl();
  is_conj_ = impl->is_conj();
  is_neg_ = impl->is_neg();
  is_wrapped_number_ = impl->is_wrapped_number();
  dtype_ = impl->dtype();
  sizes_and_strides_.set_sizes(impl->sizes());
  const IntArrayRef strides = impl->strides();
  std::copy(strides.begin(), strides.end(), sizes_and_strides_.strides_begin());
}

void TensorAlias::assign(const TensorBase& tensor) {
  if (!tensor.defined()) {
    return;
  }
  setMetadata(tensor);
  if (isOpenReg(tensor)) {
    kind_ = Kind::Memory;
    const StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    storage_data_ = kernelAddress(const_cast<void*>(storage->data()));
    storage_nbytes_ = storage->nbytes();
    storage_offset_ = tensor.storage_offset();
    return;
  }
  TORCH_CHECK(tensor.is_cpu() && tensor.dim() == 0,
              "Expected all tensors to be on the same device: a kernel takes tensors on ",
              c10::openreg::kDeviceType, " and CPU tensors of 0 dimensions, got a tensor of ",
              tensor.dim(), " dimensions on ", tensor.device());
  kind_ = Kind::Value;
  storage_nbytes_ = dtype_.itemsize();
  TORCH_INTERNAL_ASSERT(storage_nbytes_ <= value_.size());
  std::memcpy(value_.data(), tensor.const_data_ptr(), storage_nbytes_);
}

TensorAlias::TensorAlias(const std::optional<Tensor>& tensor)
    : TensorAlias(tensor.has_value() ? static_cast<const TensorBase&>(*tensor) : TensorBase()) {}

TensorAlias TensorAlias::ofHostMemory(const TensorBase& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.is_cpu());
  TensorAlias alias;
  alias.setMetadata(tensor);
  alias.kind_ = Kind::Memory;
  OPENREG_CHECK(orHostGetKernelPointer(&alias.storage_data_, tensor.storage().data()));
  alias.storage_nbytes_ = tensor.storage().nbytes();
  alias.storage_offset_ = tensor.storage_offset();
  return alias;
}

// docs: alias-tensor
Tensor TensorAlias::tensor() const {
  if (kind_ == Kind::Undefined) {
    return Tensor();
  }
  auto storage =
      c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), storage_nbytes_, data(),
                                       /*allocator=*/nullptr, /*resizable=*/false);
  return tensorOn(Storage(std::move(storage)));
}
// docs: end

Tensor TensorAlias::tensor(TensorPool& pool) const {
  if (kind_ == Kind::Undefined) {
    return Tensor();
  }
  Tensor tensor = pool.take();
  if (!tensor.defined()) {
    return this->tensor();
  }
  TensorImpl* impl = tensor.unsafeGetTensorImpl();
  StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(data());
  storage->set_nbytes(storage_nbytes_);
  if (impl->dtype() != dtype_) {
    impl->set_storage_and_dtype(impl->storage(), dtype_);
  }
  describe(impl);
  return tensor;
}

Tensor TensorAlias::tensorOnStorageOf(const Tensor& other) const {
  return tensorOn(other.storage());
}

// The memory that the tensor's storage points to.
DataPtr TensorAlias::data() const {
  void* data = kind_ == Kind::Value ? const_cast<std::byte*>(value_.data()) : storage_data_;
  return DataPtr(data, kCPU);
}

Tensor TensorAlias::tensorOn(Storage storage) const {
  auto impl =
      c10::make_intrusive<TensorImpl>(std::move(storage), DispatchKeySet(DispatchKey::CPU), dtype_);
  describe(impl.get());
  return Tensor(std::move(impl));
}

// Sets all metadata but the dtype.
void TensorAlias::describe(TensorImpl* impl) const {
  if (impl->is_wrapped_number()) {
    impl->set_wrapped_number(false);  // first: only tensors of 0 dimensions support it
  }
  if (sizes().empty()) {
    // Some torch kernels, such as linalg_vector_norm's with dim=-1, read the first size of a tensor
    // without dimensions, which holds the previous metadata. In a new tensor it is 0.
    impl->set_sizes_contiguous({0});
  }
  impl->set_sizes_and_strides(sizes_and_strides_.sizes_arrayref(),
                              sizes_and_strides_.strides_arrayref(), storage_offset_);
  if (C10_UNLIKELY(impl->is_conj() != is_conj_)) {
    impl->_set_conj(is_conj_);
  }
  if (C10_UNLIKELY(impl->is_neg() != is_neg_)) {
    impl->_set_neg(is_neg_);
  }
  if (C10_UNLIKELY(is_wrapped_number_)) {
    impl->set_wrapped_number(true);
  }
}

void TensorAlias::throwNotWritten(const Tensor& tensor) const {
  TORCH_CHECK(false, "expected the kernel to write its result of sizes ",
              sizes_and_strides_.sizes_arrayref(), " and strides ",
              sizes_and_strides_.strides_arrayref(), " in place, but it returned one of sizes ",
              tensor.sizes(), " and strides ", tensor.strides(),
              tensor.storage().data() == storage_data_ ? "" : " in other memory");
}

std::optional<Tensor> TensorAlias::optionalTensor() const {
  return defined() ? std::optional<Tensor>(tensor()) : std::nullopt;
}

std::vector<TensorAlias> aliasAll(const ITensorListRef& tensors) {
  return aliasEach<Tensor>(tensors);
}

std::vector<TensorAlias> aliasAll(const c10::List<std::optional<Tensor>>& tensors) {
  return aliasEach<std::optional<Tensor>>(tensors);
}

std::vector<Tensor> tensorsOf(const std::vector<TensorAlias>& aliases) {
  std::vector<Tensor> tensors;
  appendTensors(aliases, tensors, [](const TensorAlias& alias) { return alias.tensor(); });
  return tensors;
}

c10::List<std::optional<Tensor>> optionalTensorsOf(const std::vector<TensorAlias>& aliases) {
  c10::List<std::optional<Tensor>> tensors;
  tensors.reserve(aliases.size());
  for (const TensorAlias& alias : aliases) {
    tensors.push_back(alias.optionalTensor());
  }
  return tensors;
}

Tensor hostView(const TensorBase& tensor) {
  TORCH_INTERNAL_ASSERT(isOpenReg(tensor));
  return TensorAlias(tensor).tensor();
}

Tensor hostViewOnStorageOf(const Tensor& other, const TensorBase& tensor) {
  TORCH_INTERNAL_ASSERT(isOpenReg(tensor));
  return TensorAlias(tensor).tensorOnStorageOf(other);
}

}  // namespace at::openreg
