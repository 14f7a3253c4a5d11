#include "csrc/aten/launch/ListTensors.h"

#include <utility>

#include "csrc/aten/launch/FirstPlaces.h"

namespace at::openreg {

ListTensors::ListTensors(const std::vector<TensorAlias>& aliases) {
  if (C10_LIKELY(aliases.size() <= FirstPlaces<MemoryKey>::kCompared)) {
    tensors_ = tensorsOf(aliases);
    return;
  }
  std::vector<Tensor>& kept = keptByThisThread();
  TensorPool next;
  appendTensors(aliases, tensors_, [&](const TensorAlias& alias) {
    if (!kept.empty()) {
      next.giveBack(std::move(kept.back()));
      kept.pop_back();
    }
    return alias.tensor(next);
  });
}

// Tensors that share a storage come after its first tensor, so they are returned before it.
ListTensors::~ListTensors() {
  if (C10_LIKELY(tensors_.size() <= FirstPlaces<MemoryKey>::kCompared)) {
    return;
  }
  std::vector<Tensor>& kept = keptByThisThread();
  for (; !tensors_.empty(); tensors_.pop_back()) {
    Tensor& tensor = tensors_.back();
    if (kept.size() < kMaxKept && tensor.defined() && tensor.use_count() == 1 &&
        tensor.storage().use_count() == 1 && !tensor.storage().resizable()) {
      kept.push_back(std::move(tensor));
    }
  }
}

std::vector<Tensor>& ListTensors::keptByThisThread() {
  thread_local std::vector<Tensor> kept;
  return kept;
}

}  // namespace at::openreg
