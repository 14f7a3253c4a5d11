#include "csrc/aten/fallback/Verification.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <optional>
#include <unordered_map>
#include <vector>

#include "build/generated/facts/WorkspaceLast.h"
#include "csrc/core/Settings.h"

namespace at::openreg {
namespace {

const c10::openreg::Setting kVerify{
    "OPENREG_FALLBACK_VERIFY", "0", "0 1",
    "1: each planned call of the fallback is compared with the functional result."};

bool hasSameBytes(const Tensor& one, const Tensor& other) {
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) {
    return false;
  }
  const Tensor first = one.resolve_conj().resolve_neg().contiguous();
  const Tensor second = other.resolve_conj().resolve_neg().contiguous();
  return first.numel() == 0 ||
         std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()) == 0;
}

}  // namespace

bool isVerifying() {
  static const bool is_verifying = kVerify.isOn();
  return is_verifying;
}

std::vector<Tensor> copiesOf(c10::ArrayRef<Tensor> tensors) {
  std::unordered_map<const StorageImpl*, Storage> storages;
  std::vector<Tensor> copies(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) {
      continue;
    }
    const Storage& memory = tensors[i].storage();
    Storage& copy = storages[memory.unsafeGetStorageImpl()];
    if (!copy) {
      copy = Storage(Storage::use_byte_size_t(), memory.nbytes(), c10::GetCPUAllocator(),
                     /*resizable=*/true);
      if (memory.nbytes() > 0) {
        std::memcpy(copy.mutable_data(), memory.data(), memory.nbytes());
      }
    }
    copies[i] = tensors[i].alias();
    TensorImpl* impl = copies[i].unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(copy);
    if (tensors[i].unsafeGetTensorImpl()->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
  }
  return copies;
}

std::optional<size_t> firstWrongResult(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                       c10::ArrayRef<Tensor> results) {
  if (c10::openreg::facts::kWorkspaceLast.contains(c10::toString(op.operator_name()))) {
    results = results.slice(0, results.size() - 1);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!hasSameBytes(results[i], arguments[i].toTensor())) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace at::openreg
