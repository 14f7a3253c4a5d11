// torch asks, for CUDA tensors, whether a vendor library should compute the CTC loss.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

template <typename Lengths>
bool hasNoLibrary(const Tensor& /*log_probs*/, const Tensor& /*targets*/, Lengths /*input_lengths*/,
                  Lengths /*target_lengths*/, int64_t /*blank*/) {
  return false;
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  if (!c10::openreg::servesCuda()) {
    return;
  }
  m.impl("_use_cudnn_ctc_loss", TORCH_FN(hasNoLibrary<IntArrayRef>));
  m.impl("_use_cudnn_ctc_loss.Tensor", TORCH_FN(hasNoLibrary<const Tensor&>));
  m.impl("_use_miopen_ctc_loss", TORCH_FN(hasNoLibrary<IntArrayRef>));
  m.impl("_use_miopen_ctc_loss.Tensor", TORCH_FN(hasNoLibrary<const Tensor&>));
}

}  // namespace at::openreg
