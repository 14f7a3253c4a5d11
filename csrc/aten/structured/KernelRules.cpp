#include "csrc/aten/structured/KernelRules.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstring>
#include <vector>

namespace at::openreg {

void setMemoryFormat(const Tensor& output, const Tensor& model) {
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(
      output.sizes(), output.itemsize(), output.storage_offset());
  TORCH_CHECK(nbytes <= output.storage().nbytes(), "out=: expected a tensor with a storage of ",
              nbytes,
              " bytes or more, as the kernel gives it the memory format of the input, got one of ",
              output.storage().nbytes(), " bytes");
  output.unsafeGetTensorImpl()->empty_tensor_restride(model.suggest_memory_format());
}

namespace detail {

void tryOverlapping(ArrayRef<const Tensor*> operands, size_t output_count,
                    c10::function_ref<void(Tensor*)> kernel) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<Tensor> stand_ins;
  for (const Tensor* operand : operands) {
    const auto outputs = operands.slice(0, std::min(stand_ins.size(), output_count));
    const auto* same = std::find_if(outputs.begin(), outputs.end(), [&](const Tensor* output) {
      return operand->is_same(*output);
    });
    if (!operand->defined()) {
      stand_ins.emplace_back();
    } else if (same != outputs.end()) {
      stand_ins.push_back(stand_ins[static_cast<size_t>(same - outputs.begin())]);
    } else {
      Tensor stand_in(at::detail::empty_strided_cpu(operand->sizes(), operand->strides(),
                                                    operand->scalar_type()));
      std::memset(stand_in.storage().mutable_data(), 0, stand_in.storage().nbytes());
      stand_ins.push_back(std::move(stand_in));
    }
  }
  kernel(stand_ins.data());
}

}  // namespace detail

}  // namespace at::openreg
