// Step 6 of docs/bring_up.md, the operators that every backend needs: these ten, and the two of
// Copy.cpp. In full: csrc/aten/ops/Factories.cpp, which has views and scalars beside it.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "Operators.h"

namespace chip {

static constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

static Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype,
                    std::optional<at::Layout>, std::optional<Device> device,
                    std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, c10::GetAllocator(kType), kKeys,
                                   at::dtype_or_default(dtype), format);
}

static Tensor emptyStrided(IntArrayRef size, IntArrayRef stride,
                           std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                           std::optional<Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(kType), kKeys,
                                           at::dtype_or_default(dtype));
}

// Makes the storage as large as elements with these strides need it; what it holds stays.
static void growStorage(const Tensor& self, IntArrayRef size, IntArrayRef stride, int64_t offset) {
  const int64_t end = offset + at::native::storage_size_for(size, stride);
  if (end > offset && end * self.element_size() > self.storage().nbytes()) {
    at::native::resize_bytes_nocuda(self.storage(), end * self.element_size());  // calls the hooks
  }
}

static const Tensor& resize(const Tensor& self, IntArrayRef size,
                            std::optional<at::MemoryFormat> format) {
  if (self.sizes() != size) self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  growStorage(self, self.sizes(), self.strides(), self.storage_offset());
  return self;
}

static Tensor& setStorage(Tensor& self, c10::Storage storage, int64_t offset, IntArrayRef size,
                          IntArrayRef stride) {
  const auto dense = c10::TensorType::contiguousStridesOf(size);
  const IntArrayRef strides = stride.empty() ? IntArrayRef(dense) : stride;
  at::native::checkSetStorage(self, std::move(storage), offset, size, strides);
  growStorage(self, size, strides, offset);
  at::native::setStrided(self, size, strides, offset);
  return self;
}

static at::Scalar localScalarDense(const Tensor& self) { return self.cpu().item(); }  // waits

// What the fallback would do wrong: it returns copies where views are due, and the CPU's dropout
// draws from the CPU's default generator.
static std::tuple<Tensor, Tensor> dropout(const Tensor& x, double p, std::optional<bool> train) {
  const double kept = train.value_or(true) ? 1 - p : 1;
  Tensor mask = at::empty_like(x, at::kBool).bernoulli_(kept);
  return {x.mul(mask).mul_(kept == 0 ? 0 : 1 / kept), mask};
}

static void recordStream(Tensor& self, Stream stream) {
  c10::getDeviceAllocator(kType)->recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(emptyStrided));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(setStorage));
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, c10::Storage)>(&at::native::set_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("_local_scalar_dense", TORCH_FN(localScalarDense));

  // What the fallback would do wrong, or not at all.
  m.impl("native_dropout", TORCH_FN(dropout));
  m.impl("record_stream", TORCH_FN(recordStream));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));

  // Without these, torch would make a result of the input's size, for the CPU to resize, and warn.
  m.impl("mse_loss", CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("smooth_l1_loss", CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace chip
