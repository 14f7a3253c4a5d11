// Step 6 of docs/bring_up.md, an operator with all its variants. In full: csrc/aten/structured.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>

#include "../aten/Operators.h"

namespace chip {

// docs: chip-mul
struct MulKernel {
  void operator()(float* out, const float* a, const float* b, float number, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] * (b == nullptr ? number : b[i]);
  }
};

// The kernel serves dense float32 of one size, and `x * 2`: there, torch makes the number a tensor
// of the host without dimensions, which the host can read at once.
static bool isServed(const Tensor& self, const Tensor& other) {
  const auto is_dense = [&](const Tensor& t) {
    return t.scalar_type() == at::kFloat && t.is_contiguous() && t.device() == self.device();
  };
  const bool is_number =
      other.is_cpu() && other.dim() == 0 && at::result_type(self, other) == at::kFloat;
  return is_dense(self) && (is_number || (is_dense(other) && self.sizes() == other.sizes()));
}

static Tensor& launch(const Tensor& self, const Tensor& other, Tensor& out) {
  const bool is_number = other.is_cpu();
  check(orLaunchKernel(handleOf(currentStream(self.device().index())), MulKernel{},
                       kernelAddress<float>(out), kernelAddress<float>(self),
                       is_number ? nullptr : kernelAddress<float>(other),
                       is_number ? other.item<float>() : 0.0f, self.numel()));
  return out;
}

// Three operators: x * y, x *= y, and torch.mul(x, y, out=z). Each one that is not registered goes
// through the fallback.
static Tensor mul(const Tensor& self, const Tensor& other) {
  if (!isServed(self, other)) {
    return at::native::call_fallback_fn<&fallback, at::_ops::mul_Tensor>::call(self, other);
  }
  Tensor out = at::empty_like(self);
  return launch(self, other, out);
}

static Tensor& mulInPlace(Tensor& self, const Tensor& other) {
  if (!isServed(self, other)) {
    return at::native::call_fallback_fn<&fallback, at::_ops::mul__Tensor>::call(self, other);
  }
  return launch(self, other, self);
}

static Tensor& mulOut(const Tensor& self, const Tensor& other, Tensor& out) {
  if (!isServed(self, other) || !isServed(out, self)) {
    return at::native::call_fallback_fn<&fallback, at::_ops::mul_out>::call(self, other, out);
  }
  at::assert_no_partial_overlap(out, self);
  if (!other.is_cpu()) at::assert_no_partial_overlap(out, other);
  return launch(self, other, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mul.Tensor", TORCH_FN(mul));
  m.impl("mul_.Tensor", TORCH_FN(mulInPlace));
  m.impl("mul.out", TORCH_FN(mulOut));
}
// docs: end

}  // namespace chip
