// Scaled dot product attention. torch lets the backend select the algorithm, and calls
// `..._overrideable` for the fused one. The selection is the CPU's, and the fused algorithm is the
// CPU's flash attention.

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// A CPU tensor without memory that has the metadata that the selection depends on. Under a
// transform of functorch, the tensor itself has no memory.
Tensor dummyOf(const Tensor& tensor) {
  if (!isOpenReg(tensor) || !isPlain(tensor)) {
    return tensor;
  }
  Tensor dummy = at::detail::make_tensor<TensorImpl>(
      Storage(Storage::use_byte_size_t(), 0, DataPtr(nullptr, kCPU), /*allocator=*/nullptr,
              /*resizable=*/false),
      DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  // Symbolic sizes must stay symbolic, else a compiled function would have a graph for each size.
  dummy.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sym_sizes(), tensor.sym_strides());
  return dummy.set_requires_grad(tensor.requires_grad());
}

// Whether torch.nn.attention.sdpa_kernel allows only fused algorithms, under their CUDA names. They
// all stand for the same fused algorithm here.
bool isFusedOnly() {
  const Context& context = at::globalContext();
  return !context.userEnabledFlashSDP() && !context.userEnabledMathSDP() &&
         (context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP() ||
          context.userEnabledOverrideableSDP());
}

// The requirements of the CPU's fused algorithm, as torch's selection checks them.
bool canBeFused(const sdp::sdp_params& params) {
  constexpr bool kWarns = false;
  return sdp::check_nested_tensor(params, kWarns) && sdp::check_for_dropout(params, kWarns) &&
         sdp::check_tensor_shapes(params, kWarns) &&
         sdp::check_batch_size_and_num_heads_dense</*supports_gqa=*/true>(params, kWarns) &&
         sdp::check_attn_mask_shape(params, kWarns) &&
         sdp::check_nonzero_sequence_lengths_dense(params, kWarns) &&
         sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/false>(params,
                                                                                   kWarns) &&
         params.query.sym_size(-1) == params.value.sym_size(-1) &&
         params.query.sym_size(-1) == params.key.sym_size(-1);
}

int64_t chooseAlgorithm(const Tensor& query, const Tensor& key, const Tensor& value,
                        const std::optional<Tensor>& attn_mask, double dropout_p, bool is_causal,
                        std::optional<double> scale, bool enable_gqa) {
  const std::optional<Tensor> mask =
      attn_mask.has_value() ? std::optional<Tensor>(dummyOf(*attn_mask)) : std::nullopt;
  if (isFusedOnly() && canBeFused({dummyOf(query), dummyOf(key), dummyOf(value), mask, dropout_p,
                                   is_causal, enable_gqa})) {
    return static_cast<int64_t>(SDPBackend::overrideable);
  }
  const int64_t choice = at::native::_fused_sdp_choice_cpp(
      dummyOf(query), dummyOf(key), dummyOf(value), mask, dropout_p, is_causal, scale, enable_gqa);
  return choice == static_cast<int64_t>(SDPBackend::flash_attention)
             ? static_cast<int64_t>(SDPBackend::overrideable)
             : choice;
}

using FusedAttention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

FusedAttention fusedAttention(const Tensor& query, const Tensor& key, const Tensor& value,
                              const std::optional<Tensor>& attn_bias, double dropout_p,
                              bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!return_debug_mask,
                              "_scaled_dot_product_fused_attention_overrideable: expected "
                              "return_debug_mask=False, got True; openreg keeps no debug mask");
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout_p, is_causal, attn_bias, scale);
  // For sequences of different lengths and for dropout, which this algorithm does not support.
  const Tensor none = at::empty({0}, query.options().dtype(kLong));
  return {std::move(output),
          std::move(logsumexp),
          none,
          none,
          query.sym_size(2),
          key.sym_size(2),
          none,
          none,
          none};
}

// The CPU's backward does not compute the gradient of the bias. It is the gradient of the scores
// before the softmax, computed from probabilities that are recomputed here.
Tensor gradientOfBias(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                      const Tensor& value, const Tensor& bias, bool is_causal, const Tensor& out,
                      const Tensor& logsumexp, std::optional<double> scale) {
  const auto wide = [type = at::toOpMathType(query.scalar_type())](const Tensor& tensor) {
    return tensor.to(type);
  };
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  Tensor scores = at::matmul(wide(query), wide(key).transpose(-2, -1)).mul_(factor).add_(bias);
  if (is_causal) {
    const Tensor allowed = at::ones({query.size(-2), key.size(-2)}, query.options().dtype(kBool));
    scores.masked_fill_(allowed.tril_().logical_not_(), -std::numeric_limits<double>::infinity());
  }
  const Tensor is_masked = scores.isneginf();
  const Tensor probabilities =
      scores.sub_(wide(logsumexp).unsqueeze(-1)).exp_().masked_fill_(is_masked, 0);
  const Tensor grad_probabilities = at::matmul(wide(grad_out), wide(value).transpose(-2, -1));
  const Tensor mean = (wide(grad_out) * wide(out)).sum(-1, /*keepdim=*/true);
  const Tensor grad = probabilities * (grad_probabilities - mean);
  return at::sum_to(grad, bias.sizes()).to(bias.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fusedAttentionBackward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, std::array<bool, 4> grad_input_mask, const Tensor& out,
    const Tensor& logsumexp, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
    c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
    const Tensor& /*philox_seed*/, const Tensor& /*philox_offset*/, std::optional<double> scale) {
  auto [grad_query, grad_key, grad_value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
          attn_bias.defined() ? std::optional<Tensor>(attn_bias) : std::nullopt, scale);
  Tensor grad_bias;
  if (grad_input_mask[3] && attn_bias.defined()) {
    grad_bias =
        gradientOfBias(grad_out, query, key, value, attn_bias, is_causal, out, logsumexp, scale);
  }
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value), std::move(grad_bias)};
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(chooseAlgorithm));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(fusedAttention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward",
         TORCH_FN(fusedAttentionBackward));
}

// Under vmap, the CPU's operators are used, because the fallback of functorch cannot batch the
// sizes among the results of ours.
TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(fusedAttention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward",
         TORCH_FN(fusedAttentionBackward));
}

}  // namespace at::openreg

namespace at::native {

OPENREG_REGISTER_DISPATCH(_fused_sdp_choice_stub, &at::openreg::chooseAlgorithm)

}  // namespace at::native
