// CPU tensors that are reused by successive kernels.
//
// Note [Tensors of kernels]
// A tensor consists of three heap objects, and a worker needs a few tensors while a kernel runs.
// For small kernels, allocating them took 40 percent of the worker's time. So a tensor that has no
// other owner when its kernel returns is kept, and the next kernel on the thread uses it with new
// metadata and a new address.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// The tensors kept for one thread. All are strided CPU tensors on memory that they do not own.
class OPENREG_EXPORT TensorPool {
 public:
  static TensorPool& ofThisThread();

  // docs: tensor-pool
  // A tensor with no other owner, on a storage that no other tensor uses. Undefined if there is
  // none. It still has the metadata and the address of its last use.
  Tensor take() { return size_ > 0 ? std::move(tensors_[--size_]) : Tensor(); }

  // Keeps a tensor made by TensorAlias. Drops the reference if the tensor or its storage has
  // another owner, or if the pool is full.
  void giveBack(Tensor tensor) {
    if (tensor.defined() && tensor.use_count() == 1 && tensor.storage().use_count() == 1 &&
        size_ < tensors_.size()) {
      tensors_[size_++] = std::move(tensor);
    }
  }
  // docs: end

 private:
  std::array<Tensor, 8> tensors_;  // few operators have more operands
  size_t size_ = 0;
};

}  // namespace at::openreg
