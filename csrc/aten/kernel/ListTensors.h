// The CPU tensors of a long list of arguments, while a kernel runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "csrc/aten/kernel/TensorPool.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {

// As tensorsOf(). Of a long list, it takes tensors that this thread has kept, and keeps those that
// nobody else holds when it ends, as Note [Tensors of kernels] has it: malloc takes as long for as
// many as some kernels. A thread keeps kMaxKept at most, 5 MiB, and only if it ran such a list.
// Note [Long lists] is in FirstPlaces.h.
class ListTensors {
 public:
  // The aliases must outlive the tensors.
  explicit ListTensors(const std::vector<TensorAlias>& aliases);
  ~ListTensors();

  ListTensors(const ListTensors&) = delete;
  ListTensors& operator=(const ListTensors&) = delete;

  const std::vector<Tensor>& all() const { return tensors_; }

 private:
  static constexpr size_t kMaxKept = size_t{1} << 14;

  static std::vector<Tensor>& keptByThisThread();

  std::vector<Tensor> tensors_;
};

}  // namespace at::openreg
