// Step 9 of docs/bring_up.md, mixed precision. In full: csrc/extras/autocast/Autocast.cpp.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at::autocast {

// docs: chip-autocast
// Operators without a policy run in the types of their arguments.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

// torch's own tables of operators; a chip adds its operators with KERNEL_PRIVATEUSEONE.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define CHIP_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define CHIP_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define CHIP_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define CHIP_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(CHIP_LOWER_PRECISION)
  AT_FORALL_FP32(CHIP_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(CHIP_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(CHIP_PROMOTE)
}
// docs: end

}  // namespace at::autocast
