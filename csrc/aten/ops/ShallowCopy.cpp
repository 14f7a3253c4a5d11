// Which tensors can be assigned another tensor's contents and device by `tensor.data = other`.
//
// Module.to() checks this for each parameter. If it is possible, the parameter stays the same
// object, so optimizers and modules that share it keep it. ATen's kernel supports only its own
// device types.

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
