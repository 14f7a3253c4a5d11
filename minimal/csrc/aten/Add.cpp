// Step 6 of docs/bring_up.md, an operator with a kernel of its own. In full: csrc/aten/structured.
#include <ATen/native/CPUFallback.h>

#include "Operators.h"

namespace chip {

// docs: minimal-add
struct AddKernel {  // errors name a kernel by its type
  void operator()(float* out, const float* a, const float* b, float number, float alpha,
                  int64_t count) const {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] + alpha * (b == nullptr ? number : b[i]);
  }
};

// Returns before the kernel runs. Its tensors may be freed then: their memory is given out again on
// this stream only. For `x + 1`, torch makes the number a tensor of the host without dimensions,
// which the host can read at once. What the kernel does not serve (other dtypes, broadcasting,
// strides) goes through the fallback.
static Tensor add(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  const auto is_dense = [&self](const Tensor& t) {
    return t.scalar_type() == at::kFloat && t.is_contiguous() && t.device() == self.device() &&
           t.sizes().equals(self.sizes());
  };
  const bool is_number =
      other.is_cpu() && other.dim() == 0 && at::result_type(self, other) == at::kFloat;
  if (!is_dense(self) || !(is_number || is_dense(other))) {
    return at::native::call_fallback_fn<&fallback, at::_ops::add_Tensor>::call(self, other, alpha);
  }
  Tensor result = at::empty_like(self);
  check(orLaunchKernel(handleOf(currentStream(self.device().index())), AddKernel{},
                       kernelAddress<float>(result), kernelAddress<float>(self),
                       is_number ? nullptr : kernelAddress<float>(other),
                       is_number ? static_cast<float>(other.item<double>()) : 0.0f,
                       alpha.to<float>(), self.numel()));
  return result;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("add.Tensor", TORCH_FN(add)); }
// docs: end

}  // namespace chip
