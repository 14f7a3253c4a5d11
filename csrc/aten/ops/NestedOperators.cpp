// Operators on nested tensors. Those that only read metadata are ATen's; the others use the
// fallback.

#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/copy_native.h>
#include <torch/library.h>

#include "csrc/aten/fallback/LayoutFallback.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {

OPENREG_LIBRARY_IMPL(_, NestedTensor, m) { m.fallback(layoutFallback()); }

OPENREG_LIBRARY_IMPL(aten, NestedTensor, m) {
  // The shape of a nested tensor is in CPU tensors on all devices.
  m.impl("_nested_tensor_size", TORCH_FN(at::native::_nested_tensor_size));
  m.impl("_nested_tensor_storage_offsets", TORCH_FN(at::native::_nested_tensor_storage_offsets));
  m.impl("_nested_tensor_strides", TORCH_FN(at::native::_nested_tensor_strides));
  m.impl("_to_copy", TORCH_FN(at::native::_to_copy_nested));
  m.impl("copy_", TORCH_FN(at::native::copy_nested_));
  registerLayoutFallback(c10::DispatchKey::NestedTensor, m);
}

}  // namespace at::openreg
