// Fills with a number.

#include <ATen/ops/fill_cpu_dispatch.h>
#include <ATen/ops/zero_cpu_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "csrc/aten/cpu/DryRun.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using FillScalar = Tensor& (*)(Tensor&, const Scalar&);
using FillTensor = Tensor& (*)(Tensor&, const Tensor&);

// Numbers that fit every dtype: integers from -2^7 up to 2^7; negative ones wrap if unsigned.
bool fitsEveryDtype(const Scalar& value) {
  constexpr int64_t kLimit = 127;
  if (value.isIntegral(/*includeBool=*/true)) {
    const auto number = value.to<int64_t>();
    return -kLimit <= number && number <= kLimit;
  }
  return value.isFloatingPoint() && std::abs(value.to<double>()) <= kLimit;  // false for NaN
}

// Throws unless the number fits the tensor's dtype. The kernel makes this check, so it first fills
// a few elements on the calling thread. Its checks differ between one element and several.
void checkFits(const Tensor& self, const Scalar& value) {
  const ScalarType dtype = self.scalar_type();
  static_assert(static_cast<int>(ScalarType::NumOptions) <= 64);
  static std::atomic<uint64_t> filled_before{0};  // a bit per dtype that the CPU can fill
  const uint64_t bit = uint64_t(1) << static_cast<int>(dtype);
  if (C10_LIKELY(fitsEveryDtype(value) &&
                 (filled_before.load(std::memory_order_relaxed) & bit) != 0)) {
    return;
  }
  Tensor some = dummy(dtype, {std::min<int64_t>(self.numel(), 2)});
  at::cpu::fill_(some, value);
  filled_before.fetch_or(bit, std::memory_order_relaxed);
}

Tensor& fillScalar(Tensor& self, const Scalar& value) {
  checkFits(self, value);
  return InPlace<"aten::fill_.Scalar", static_cast<FillScalar>(&at::cpu::fill_)>::call(self, value);
}

Tensor& fillTensor(Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  return InPlace<"aten::fill_.Tensor", static_cast<FillTensor>(&at::cpu::fill_)>::call(self, value);
}

// Traced as a memory fill if the kernel is equivalent to one.
Tensor& zero(Tensor& self) {
  if (self.is_non_overlapping_and_dense()) {
    observeArguments("aten::zero_", self.device(), &at::cpu::zero_, self);
    launchWork(self.device(), c10::openreg::WorkDescription::fill(self.nbytes()),
               bindArguments(self.device(), &at::cpu::zero_, self));
  } else {
    enqueue<"aten::zero_">(self.device(), &at::cpu::zero_, self);
  }
  return self;
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("fill_.Scalar", TORCH_FN(fillScalar));
  m.impl("fill_.Tensor", TORCH_FN(fillTensor));
  m.impl("zero_", TORCH_FN(zero));
}

}  // namespace at::openreg
