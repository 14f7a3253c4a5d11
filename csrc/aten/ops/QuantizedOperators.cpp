// Operators on quantized tensors. Those that only read the quantizer are ATen's; the others use the
// fallback.

#include <ATen/ops/empty.h>
#include <ATen/ops/q_scale_native.h>
#include <ATen/ops/q_zero_point_native.h>
#include <ATen/ops/qscheme_native.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <torch/library.h>

#include "csrc/aten/fallback/LayoutFallback.h"
#include "csrc/aten/layouts/Components.h"
#include "csrc/aten/ops/Copy.h"
#include "csrc/aten/ops/Factories.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// The bytes of elements of which several share a byte; each row of the last dimension starts with a
// new byte.
int64_t packedBytes(IntArrayRef size, ScalarType dtype) {
  const int64_t elements_per_byte = dtype == kQUInt4x2 ? 2 : 4;
  if (size.empty()) {
    return 1;
  }
  return c10::multiply_integers(size.slice(0, size.size() - 1)) *
         ((size.back() + elements_per_byte - 1) / elements_per_byte);
}

// Uninitialized integers with the quantizer of `model`, on the requested device.
Tensor emptyQuantized(IntArrayRef size, const Tensor& model, std::optional<ScalarType> dtype,
                      std::optional<Layout> layout, std::optional<Device> device,
                      std::optional<bool> pin_memory, std::optional<MemoryFormat> memory_format) {
  const ScalarType type = model.scalar_type();
  TORCH_CHECK(!dtype.has_value() || *dtype == type, "empty_quantized: expected ", type,
              ", the type of the quantized tensor given, got ", *dtype);
  const Device place = device.value_or(model.device());
  if (type == kQUInt4x2 || type == kQUInt2x4) {
    const Tensor bytes = at::empty(packedBytes(size, type), kByte, layout, place, pin_memory, {});
    Tensor packed = assemble(model, {bytes});
    packed.unsafeGetTensorImpl()->set_storage_offset(0);
    packed.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    return packed;
  }
  const Tensor integers =
      at::empty(size, c10::toUnderlying(type), layout, place, pin_memory, memory_format);
  return assemble(model, {integers});
}

// Copies the integers and the quantizer, between devices or between tensors with quantizers of
// their own.
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

OPENREG_LIBRARY_IMPL(_, Quantized, m) { m.fallback(layoutFallback()); }

OPENREG_LIBRARY_IMPL(aten, Quantized, m) {
  m.impl("copy_", TORCH_FN(copyQuantized));
  m.impl("empty_quantized", TORCH_FN(emptyQuantized));
  m.impl("q_scale", TORCH_FN(at::native::q_scale_quant));
  m.impl("q_zero_point", TORCH_FN(at::native::q_zero_point_quant));
  m.impl("qscheme", TORCH_FN(at::native::qscheme_quant));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(setStorage));
  registerLayoutFallback(c10::DispatchKey::Quantized, m);
}

}  // namespace at::openreg
