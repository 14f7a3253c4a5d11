#include "csrc/aten/launch/EmptyTensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using c10::openreg::kDeviceType;

const c10::DispatchKeySet kKeys(c10::openreg::keyOf(c10::DispatchKey::Dense));

}  // namespace

Tensor emptyOnCurrentDevice(IntArrayRef sizes, ScalarType dtype,
                            std::optional<MemoryFormat> memory_format) {
  return at::detail::empty_generic(sizes, c10::GetAllocator(kDeviceType), kKeys, dtype,
                                   memory_format);
}

Tensor emptyStridedOnCurrentDevice(IntArrayRef sizes, IntArrayRef strides, ScalarType dtype) {
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kDeviceType), kKeys,
                                           dtype);
}

}  // namespace at::openreg
