// Tensors as they travel: contiguous, and as bytes where nobody computes with them.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {

// Whether the memory of a CPU tensor holds its elements in order.
bool isPacked(const Tensor& tensor);

// A plain tensor with the same elements: the tensor itself, or a copy.
Tensor asPacked(const Tensor& tensor);

// Gives the elements of the packed form of a tensor back to it.
void copyBack(const Tensor& packed, const Tensor& tensor);

// The bytes of a plain tensor, as a tensor of one dimension on its memory. It does not own it.
Tensor bytesOf(const Tensor& plain);

// A result on its way into a tensor: the tensor itself if it is plain, else memory aside.
class Landing {
 public:
  explicit Landing(Tensor target);

  const Tensor& plain() const { return plain_; }
  Tensor bytes() const { return bytesOf(plain_); }

  // The result is there.
  void complete() const;

 private:
  Tensor target_;
  Tensor plain_;
};

}  // namespace at::openreg
