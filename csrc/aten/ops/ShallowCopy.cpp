// Which tensors may take over what another one has, its device included: `tensor.data = other`.
//
// Module.to() asks this for each parameter. If it may, the parameter stays the same object, so that
// optimizers and modules that share it keep it. ATen's own kernel says so of the device types that
// it knows.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

bool isDense(const Tensor& tensor) {
  return (tensor.is_cpu() || isOpenReg(tensor)) && isPlain(tensor);
}

bool hasCompatibleShallowCopyType(const Tensor& self, const Tensor& from) {
  return self.key_set() == from.key_set() || (isDense(self) && isDense(from));
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(hasCompatibleShallowCopyType));
}

}  // namespace at::openreg
