// Step 8 of docs/bring_up.md, an operator of one's own. In full: csrc/extras/custom/CustomAbs.cpp.
#include "../aten/Operators.h"

namespace chip {

// docs: chip-custom
struct SquaresKernel {
  void operator()(float* out, const float* in, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) out[i] = in[i] * in[i];
  }
};

static Tensor squares(const Tensor& input) {
  TORCH_CHECK(input.scalar_type() == at::kFloat, "squares: expected float32, got ", input.dtype());
  const Tensor in = input.contiguous();
  Tensor out = at::empty_like(in);
  check(orLaunchKernel(handleOf(currentStream(in.device().index())), SquaresKernel{},
                       kernelAddress<float>(out), kernelAddress<float>(in), in.numel()));
  return out;
}

// The schema has a namespace of its own. custom.py has the rest: shapes and gradients.
TORCH_LIBRARY(chip, m) { m.def("squares(Tensor input) -> Tensor"); }
TORCH_LIBRARY_IMPL(chip, PrivateUse1, m) { m.impl("squares", TORCH_FN(squares)); }
// docs: end

}  // namespace chip
