#include "csrc/distributed/Bytes.h"

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

Tensor bytesOf(const Tensor& plain) {
  return at::from_blob(plain.data_ptr(), {static_cast<int64_t>(plain.nbytes())},
                       at::TensorOptions().dtype(kByte));
}

Landing::Landing(Tensor target)
    : target_(std::move(target)),
      plain_(isPacked(target_) ? target_ : at::empty(target_.sizes(), target_.options())) {}

void Landing::complete() const {
  if (!plain_.is_same(target_)) {
    target_.copy_(plain_);
  }
}

}  // namespace at::openreg
