#include "csrc/aten/structured/KernelRules.h"

#include <ATen/EmptyTensor.h>

namespace at::openreg {

void setMemoryFormat(const Tensor& output, const Tensor& model) {
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(
      output.sizes(), output.itemsize(), output.storage_offset());
  TORCH_CHECK(
      nbytes <= output.storage().nbytes(), "out=: expected a tensor with a storage of ", nbytes,
      " bytes or more, because the kernel gives it the memory format of the input, got one of ",
      output.storage().nbytes(), " bytes");
  output.unsafeGetTensorImpl()->empty_tensor_restride(model.suggest_memory_format());
}

}  // namespace at::openreg
