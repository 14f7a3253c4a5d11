// Step 6 of docs/bring_up.md and the example of docs/what_to_write_next.md: a kernel for all
// variants of an operator. In full: csrc/aten/structured.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/CPUFallback.h>

#include "../aten/Operators.h"

namespace chip {

// docs: chip-mul
struct MulKernel {
  void operator()(float* out, const float* a, const float* b, float number, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] * (b == nullptr ? number : b[i]);
  }
};

// torch's kernels of mul.Tensor and mul_.Tensor check the arguments, allocate `out` and call this.
// With out=, the caller has allocated it, and may have passed a view of an argument. For `x * 2`,
// torch makes the number a tensor of the host without dimensions, which the host can read at once.
static Tensor& mulOut(const Tensor& self, const Tensor& other, Tensor& out) {
  at::assert_no_internal_overlap(out);  // of the fallback, too, which copies each argument alone
  at::assert_no_partial_overlap(out, self);
  at::assert_no_partial_overlap(out, other);
  const auto is_dense = [&out](const Tensor& t) {
    return t.scalar_type() == at::kFloat && t.is_contiguous() && t.device() == out.device() &&
           t.sizes().equals(out.sizes());
  };
  const bool is_number = other.is_cpu() && other.dim() == 0 && !isComplexType(other.scalar_type());
  if (!is_dense(self) || !is_dense(out) || !(is_number || is_dense(other))) {
    return at::native::call_fallback_fn<&fallback, at::_ops::mul_out>::call(self, other, out);
  }
  check(orLaunchKernel(handleOf(currentStream(out.device().index())), MulKernel{},
                       kernelAddress<float>(out), kernelAddress<float>(self),
                       is_number ? nullptr : kernelAddress<float>(other),
                       is_number ? static_cast<float>(other.item<double>()) : 0.0f, out.numel()));
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("mul.out", TORCH_FN(mulOut)); }
// docs: end

}  // namespace chip
