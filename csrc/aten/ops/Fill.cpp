// Fills with a number.

#include <ATen/TensorIterator.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <ATen/ops/zero_cpu_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/ops/Copy.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using FillScalar = Tensor& (*)(Tensor&, const Scalar&);
using FillTensor = Tensor& (*)(Tensor&, const Tensor&);

// Whether the number is one of those that fit every dtype but rare ones: up to 127, and not below
// -127. Of the negative ones, integers wrap in a dtype without a sign, fractions do not fit it.
bool isSmall(const Scalar& value, ScalarType dtype) {
  constexpr int64_t kLimit = 127;
  if (isRare(dtype) || value.type() == ScalarType::UInt64) {
    return false;
  }
  if (value.isIntegral(/*includeBool=*/true)) {
    const auto number = value.to<int64_t>();
    return -kLimit <= number && number <= kLimit;
  }
  return value.isFloatingPoint() && std::abs(value.to<double>()) <= kLimit &&  // false for NaN
         (value.to<double>() >= 0 || dtype != kByte);
}

// Throws unless the number fits the tensor's dtype. The kernel makes this check, so it first fills
// a few elements on the calling thread. Its checks differ between one element and several.
void checkFits(const Tensor& self, const Scalar& value) {
  static std::array<CheckedDtypes, 2> checked;
  const ScalarType dtype = self.scalar_type();
  const auto fill = [&] {
    Tensor some = dummy(dtype, {std::min<int64_t>(self.numel(), 2)});
    at::cpu::fill_(some, value);
  };
  if (C10_LIKELY(isSmall(value, dtype))) {
    checked[self.numel() == 1].check(dtype, fill);
  } else {
    fill();
  }
}

Tensor& fillScalar(Tensor& self, const Scalar& value) {
  checkFits(self, value);
  return InPlace<"aten::fill_.Scalar", static_cast<FillScalar>(&at::cpu::fill_)>::call(self, value);
}

Tensor& fillTensor(Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  checkConversion(self.scalar_type(), value.scalar_type());
  return InPlace<"aten::fill_.Tensor", static_cast<FillTensor>(&at::cpu::fill_)>::call(self, value);
}

// Traced as a memory fill if the kernel is equivalent to one.
Tensor& zero(Tensor& self) {
  // The CPU zeroes the bytes of a small tensor, whatever its dtype is, and fills others.
  if (C10_UNLIKELY(isRare(self.scalar_type())) &&
      !(self.is_non_overlapping_and_dense() && 0 < self.numel() &&
        self.numel() < at::internal::GRAIN_SIZE)) {
    checkFits(self, 0);
  }
  if (self.is_non_overlapping_and_dense()) {
    const Verdict verdict = observeArguments("aten::zero_", self.device(), &at::cpu::zero_, self);
    launchOp(self.device(),
             WorkKernel{bindArguments(self.device(), &at::cpu::zero_, self),
                        c10::openreg::WorkDescription::fill(self.nbytes())},
             verdict);
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
