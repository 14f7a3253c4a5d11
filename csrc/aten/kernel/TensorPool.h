// CPU tensors that one kernel after the other uses.
//
// Note [Tensors of kernels]
// A tensor consists of three heap objects, and a worker needs some tensors per kernel, for as long
// as the kernel runs. With small kernels that was 40 percent of the worker's time. So a tensor that
// nobody holds when its kernel returns is kept, and the next kernel on the thread gets it with its
// own address and metadata.
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
  // A tensor that nobody else holds, on a storage that no other tensor has. Undefined if there is
  // none. Its metadata and address are those of its last use.
  Tensor take() { return size_ > 0 ? std::move(tensors_[--size_]) : Tensor(); }

  // Keeps the tensor, one that TensorAlias made, or drops the reference to it: if there is another,
  // if its storage has another, or if there are enough.
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
