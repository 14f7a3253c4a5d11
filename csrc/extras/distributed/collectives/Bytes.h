// Tensors in the form in which they are sent: contiguous, and as plain bytes where no values are
// computed.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {

// Whether the memory of a CPU tensor holds its elements in order.
bool isPacked(const Tensor& tensor);

// A plain tensor with the same elements: the tensor itself, or a copy.
Tensor asPacked(const Tensor& tensor);

// Copies the elements of the packed form back into the tensor.
void copyBack(const Tensor& packed, const Tensor& tensor);

// The bytes of a plain tensor, as a tensor of one dimension on its memory. It does not own it.
Tensor bytesOf(const Tensor& plain);

// Memory that receives a result: that of the tensor itself if it is packed, else a temporary.
class RecvBuffer {
 public:
  explicit RecvBuffer(Tensor target);

  const Tensor& plain() const { return plain_; }
  Tensor bytes() const { return bytesOf(plain_); }

  // Call when the result has arrived: copies a temporary into the tensor.
  void complete() const;

 private:
  Tensor target_;
  Tensor plain_;
};

}  // namespace at::openreg
