// Step 7 of docs/bring_up.md, the kernel that docs/what_to_write_next.md adds to a copy of
// minimal/.
#include <ATen/native/CPUFallback.h>

#include "Operators.h"

namespace chip {

// docs: bringup-mul
struct MulKernel {
  void operator()(float* out, const float* a, const float* b, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] * b[i];
  }
};

// torch's kernels of mul.Tensor and mul_.Tensor check the arguments, allocate `out` and call this.
// With out=, the caller has allocated it.
static Tensor& mulOut(const Tensor& self, const Tensor& other, Tensor& out) {
  const auto is_served = [&out](const Tensor& t) {
    return t.scalar_type() == at::kFloat && t.is_contiguous() && t.device() == out.device() &&
           t.sizes().equals(out.sizes());
  };
  if (!is_served(self) || !is_served(other) || !is_served(out)) {
    return at::native::call_fallback_fn<&fallback, at::_ops::mul_out>::call(self, other, out);
  }
  check(orLaunchKernel(handleOf(currentStream(out.device().index())), MulKernel{},
                       kernelAddress<float>(out), kernelAddress<float>(self),
                       kernelAddress<float>(other), out.numel()));
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("mul.out", TORCH_FN(mulOut)); }
// docs: end

}  // namespace chip
