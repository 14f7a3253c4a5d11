// Under vmap, the attention that is left to backends runs as the CPU's operators, because the
// fallback of functorch cannot batch the sizes among the results of ours. torch itself batches
// CUDA's.

#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
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

namespace at::openreg {
namespace {

using BatchedAttention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

BatchedAttention batchedAttention(const Tensor& query, const Tensor& key, const Tensor& value,
                                  const std::optional<Tensor>& attn_bias, double dropout_p,
                                  bool is_causal, bool return_debug_mask,
                                  std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!return_debug_mask && dropout_p == 0,
                              "_scaled_dot_product_fused_attention_overrideable: expected "
                              "return_debug_mask=False and dropout_p=0 under vmap, got ",
                              return_debug_mask, " and ", dropout_p);
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

std::tuple<Tensor, Tensor, Tensor, Tensor> batchedAttentionBackward(
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

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(batchedAttention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward",
         TORCH_FN(batchedAttentionBackward));
}

}  // namespace at::openreg
