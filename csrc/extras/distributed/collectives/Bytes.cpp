#include "csrc/extras/distributed/collectives/Bytes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>

namespace at::openreg {

bool isPacked(const Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

Tensor asPacked(const Tensor& tensor) {
  return isPacked(tensor) ? tensor : tensor.resolve_conj().resolve_neg().contiguous();
}

void copyBack(const Tensor& packed, const Tensor& tensor) {
  if (!packed.is_same(tensor)) {
    tensor.copy_(packed);
  }
}

Tensor bytesOf(const Tensor& plain) {
  return at::from_blob(plain.data_ptr(), {static_cast<int64_t>(plain.nbytes())},
                       at::TensorOptions().dtype(kByte));
}

RecvBuffer::RecvBuffer(Tensor target)
    : target_(std::move(target)),
      plain_(isPacked(target_) ? target_ : at::empty(target_.sizes(), target_.options())) {}

void RecvBuffer::complete() const { copyBack(plain_, target_); }

}  // namespace at::openreg
