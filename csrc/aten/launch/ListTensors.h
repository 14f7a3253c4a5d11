// The CPU tensors for a long list of arguments, while a kernel runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "csrc/aten/launch/TensorPool.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {

// As tensorsOf(). For a long list, it reuses tensors that this thread has kept. When it ends, it
// keeps those that have no other owner, as in Note [Tensors of kernels]: allocating so many can
// take as long as the kernel. A thread keeps at most kMaxKept, 5 MiB, and only if it ran such a
// list. Note [Long lists] is in FirstPlaces.h.
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
