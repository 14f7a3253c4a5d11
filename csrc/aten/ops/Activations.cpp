// Activations that are not structured in ATen.

#include <ATen/ops/clamp_min_cpu_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu_cpu_dispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "csrc/aten/cpu/TrialRun.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

void checkDtype(ScalarType dtype) {
  static CheckedDtypes checked;
  TORCH_CHECK(dtype != kBool, "Boolean inputs not supported for relu");
  checked.check(dtype, [&] {
    Tensor some = dummy(dtype, {1});
    at::cpu::relu_(some);
  });
}

// docs: relu
Tensor relu(const Tensor& self) {
  checkDtype(self.scalar_type());
  const c10::DeviceGuard guard(self.device());
  Tensor result = at::empty_like(self);
  // The CPU computes relu as this clamp, which has an out variant.
  enqueue<"aten::relu">(
      self.device(),
      [](Tensor& out, const Tensor& in) { at::cpu::clamp_min_outf(in, Scalar(0), out); }, result,
      self);
  return result;
}
// docs: end

Tensor& reluInPlace(Tensor& self) {
  checkDtype(self.scalar_type());
  return InPlace<"aten::relu_", &at::cpu::relu_>::call(self);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("relu", TORCH_FN(relu));
  m.impl("relu_", TORCH_FN(reluInPlace));
}

}  // namespace at::openreg
