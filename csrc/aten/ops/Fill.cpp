#include "csrc/aten/ops/Fill.h"

#include <ATen/native/TensorFactories.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <ATen/ops/fill_native.h>
#include <ATen/ops/zero_cpu_dispatch.h>
#include <ATen/ops/zero_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "torch_openreg/aten/KernelArguments.h"

namespace at::openreg {
namespace {

using FillScalar = Tensor& (*)(Tensor&, const Scalar&);
using FillTensor = Tensor& (*)(Tensor&, const Tensor&);

Tensor& fillTensor(Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  return InPlace<"aten::fill_.Tensor", static_cast<FillTensor>(&at::cpu::fill_)>::call(self, value);
}

// A trace shows it as a fill of memory if that is what the kernel comes to.
Tensor& zero(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  if (self.is_non_overlapping_and_dense()) {
    launchWork(self.device(), c10::openreg::WorkDescription::fill(self.nbytes()),
               bindArguments(self.device(), &at::cpu::zero_, self));
  } else {
    enqueue<"aten::zero_">(self.device(), &at::cpu::zero_, self);
  }
  return self;
}

}  // namespace

void fillDeterministically(Tensor& tensor) {
  enqueue<"aten::empty (deterministic fill)">(
      tensor.device(), [](Tensor& memory) { at::native::fill_empty_deterministic_(memory); },
      tensor);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("fill_.Scalar",
         &InPlace<"aten::fill_.Scalar", static_cast<FillScalar>(&at::cpu::fill_)>::call);
  m.impl("fill_.Tensor", TORCH_FN(fillTensor));
  m.impl("zero_", TORCH_FN(zero));
}

}  // namespace at::openreg
