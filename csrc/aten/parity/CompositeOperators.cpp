// Operators that ATen would decompose on a device like this one, but that run as a whole on the
// CPU: as one kernel instead of several, and with the CPU's bits where its kernel rounds
// differently. They use the fallback; see Note [Calls that repeat].

#include <torch/library.h>

#include "csrc/aten/fallback/Fallback.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

constexpr const char* kNames[] = {
    // The CPU has a kernel of its own.
    "_stack",
    "_stack.out",
    "addr",
    "addr.out",
    "addr_",
    "linalg__powsum",
    "mish_backward",
    "narrow_copy",
    "native_channel_shuffle",
    "native_group_norm",
    "native_layer_norm",
    "pixel_shuffle",
    "pixel_unshuffle",
    // The composition supports only some devices.
    "_conj_physical",
    "conj_physical_",
    "kaiser_window",
    "kaiser_window.beta",
    "kaiser_window.beta_out",
    "kaiser_window.out",
    "kaiser_window.periodic",
    "kaiser_window.periodic_out",
    "mode",
    "mode.values",
    // The composition accesses the tensor's memory on the host.
    "_choose_qparams_per_tensor",
    "_reshape_from_tensor",
    "_saturate_weight_to_fp16",
    "_sobol_engine_draw",
    "_sobol_engine_ff_",
    "_sobol_engine_initialize_state_",
    "_sobol_engine_scramble_",
    "choose_qparams_optimized",
    "fbgemm_linear_fp16_weight",
    "fbgemm_linear_fp16_weight.out",
    "fbgemm_linear_fp16_weight_fp32_activation",
    "fbgemm_linear_fp16_weight_fp32_activation.out",
    "fbgemm_linear_int8_weight",
    "fbgemm_linear_int8_weight_fp32_activation",
    "fbgemm_linear_quantize_weight",
    "fbgemm_pack_gemm_matrix_fp16",
    "fbgemm_pack_quantized_matrix",
    "fbgemm_pack_quantized_matrix.KN",
    "range.out_",
    // The CPU selects one of several kernels. "convolution" stays composite: torch.jit.trace
    // records the "_convolution" that it calls, not itself.
    "_convolution",
    "conv_tbc",
    "convolution_backward",
    // Sequences of small kernels, or a kernel and a copy.
    "_safe_softmax",
    "binary_cross_entropy_with_logits",
    "constant_pad_nd",
    "huber_loss_backward",
    "index_fill.int_Scalar",
    "index_fill.int_Tensor",
    "logcumsumexp",
    "logsumexp",
    "masked_fill.Scalar",
    "masked_fill.Tensor",
    "masked_scatter",
    "masked_scatter_backward",
    "nan_to_num",
    "nan_to_num_",
    "norm.Scalar",
    "norm.ScalarOpt_dtype",
    "repeat",
    "rot90",
    "smooth_l1_loss_backward",
    "soft_margin_loss",
    "soft_margin_loss_backward",
};

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  for (const char* name : kNames) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&runFallback>());
  }
}

}  // namespace at::openreg
