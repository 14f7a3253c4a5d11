#include "csrc/aten/structured/KernelRules.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "torch_openreg/aten/KernelEnvironment.h"

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

namespace detail {

void tryOverlapping(ArrayRef<const Tensor*> operands, size_t output_count,
                    c10::function_ref<void(Tensor*)> kernel) {
  const CpuKernelScope scope;
  std::vector<Tensor> dummies;
  std::vector<std::pair<Storage, Storage>> storages;  // of the operands, of their dummies
  const auto storage_for = [&](const Tensor& operand) {
    const auto known = std::find_if(storages.begin(), storages.end(), [&](const auto& pair) {
      return pair.first.is_alias_of(operand.storage());
    });
    if (known != storages.end()) {
      return known->second;
    }
    Storage zeros(Storage::use_byte_size_t(), operand.storage().nbytes(), c10::GetCPUAllocator(),
                  /*resizable=*/true);
    if (zeros.nbytes() > 0) {
      std::memset(zeros.mutable_data(), 0, zeros.nbytes());
    }
    storages.emplace_back(operand.storage(), zeros);
    return zeros;
  };
  for (const Tensor* operand : operands) {
    const auto outputs = operands.slice(0, std::min(dummies.size(), output_count));
    const auto* same = std::find_if(outputs.begin(), outputs.end(), [&](const Tensor* output) {
      return operand->is_same(*output);
    });
    if (!operand->defined()) {
      dummies.emplace_back();
    } else if (same != outputs.end()) {
      dummies.push_back(dummies[static_cast<size_t>(same - outputs.begin())]);
    } else {
      Tensor dummy(at::detail::empty_cpu({0}, operand->scalar_type()));
      TensorImpl* impl = dummy.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(storage_for(*operand));
      impl->set_sizes_and_strides(operand->sizes(), operand->strides(), operand->storage_offset());
      dummies.push_back(std::move(dummy));
    }
  }
  kernel(dummies.data());
}

}  // namespace detail

}  // namespace at::openreg
