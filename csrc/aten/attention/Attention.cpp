// Scaled dot product attention of whole tensors, see Note [Attention's operators]. Each call is one
// kernel; with dropout, another one draws the seed first.

#include "csrc/aten/attention/Attention.h"

#include <ATen/Context.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "csrc/aten/attention/AttentionChoice.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {

RandomState drawRandomState(c10::Device device, const AttentionCall& call, bool is_flash) {
  const ScalarType numbers = is_flash ? kUInt64 : kLong;
  RandomState state{
      is_flash ? emptyOnCurrentDevice({2}, numbers) : emptyOnCurrentDevice({}, numbers),
      emptyOnCurrentDevice({}, numbers)};
  if (call.hasDropout()) {
    enqueue<"random seed of attention">(
        device,
        [](const std::optional<Generator>& engine, Tensor& seed, Tensor& offset) {
          drawSeedOfNoise(*engine, seed);
          offset.zero_();
        },
        std::optional<Generator>(), state.seed, state.offset);
  }
  return state;
}

void checkFlashAsCuda(const Tensor& query, const Tensor& key, const Tensor& value) {
  if (!c10::openreg::servesCuda()) {
    return;
  }
  TORCH_CHECK(hasCapability(8, 0), "FlashAttention only supports Ampere GPUs or newer.");
  const ScalarType type = query.scalar_type();
  TORCH_CHECK(type == kHalf || type == kBFloat16,
              "FlashAttention only support fp16 and bf16 data type");
  TORCH_CHECK(key.scalar_type() == type, "query and key must have the same dtype");
  TORCH_CHECK(value.scalar_type() == type, "query and value must have the same dtype");
  for (const Tensor* one : {&query, &key, &value}) {
    TORCH_CHECK(one->stride(-1) == 1, "Input tensor must have contiguous last dimension");
  }
  const int64_t size = query.size(-1);
  TORCH_CHECK(query.dim() == 3 || query.size(0) > 0, "batch size must be positive");
  TORCH_CHECK(size % 8 == 0, "head_size must be a multiple of 8, this is ensured by padding!");
  TORCH_CHECK(size <= 256, "FlashAttention forward only supports head dimension at most 256");
  TORCH_CHECK(key.size(-2) > 0 && query.size(-2) % key.size(-2) == 0,
              "Number of heads in key/value must divide number of heads in query");
}

void checkEfficientAsCuda(const Tensor& query, const Tensor& key, const Tensor& value,
                          const std::optional<Tensor>& bias) {
  if (!c10::openreg::servesCuda()) {
    return;
  }
  const ScalarType type = query.scalar_type();
  TORCH_CHECK(type == kFloat || type == kHalf || type == kBFloat16,
              "Only fp32, half & bf16 supported at the moment");
  TORCH_CHECK(query.stride(-1) == 1, "query: last dimension must be contiguous");
  TORCH_CHECK(key.stride(-1) == 1, "key: last dimension must be contiguous");
  TORCH_CHECK(value.stride(-1) == 1, "value: last dimension must be contiguous");
  if (!bias.has_value()) {
    return;
  }
  TORCH_CHECK(bias->stride(-1) == 1, "(*bias): last dimension must be contiguous");
  TORCH_CHECK(bias->scalar_type() == type, "invalid dtype for bias - should match query's dtype");
  const int64_t alignment = alignmentOfEfficientAttention(type);
  TORCH_CHECK(reinterpret_cast<uintptr_t>(bias->const_data_ptr()) % alignment == 0,
              "p.attn_bias_ptr is not correctly aligned");
  constexpr std::array kNames{"strideB", "strideH", "strideM"};
  const Tensor whole = bias->dim() == 4 ? *bias : bias->expand({1, 1, -1, -1});
  for (const int64_t dim : {0, 1, 2}) {
    TORCH_CHECK(whole.size(dim) <= 1 || whole.stride(dim) % alignment == 0,
                "attn_bias is not correctly aligned (", kNames[dim], "). attn_bias.stride(", dim,
                ") = ", whole.stride(dim), ", and should be a multiple of ", alignment, ".");
  }
}

void warnOfOrder(const char* algorithm) {
  const Context& context = at::globalContext();
  if (c10::openreg::servesCuda() && context.deterministicAlgorithms() &&
      context.deterministicAlgorithmsWarnOnly()) {
    TORCH_WARN(algorithm,
               " defaults to a non-deterministic algorithm. To explicitly enable determinism call "
               "torch.use_deterministic_algorithms(True, warn_only=False).");
  }
}

Tensor emptyDebugMask(int64_t batch, int64_t heads, int64_t queries, int64_t keys, double dropout_p,
                      ScalarType type) {
  TORCH_CHECK(dropout_p > 0, "return_softmax is only supported when p_dropout > 0.0");
  const auto rounded = [](int64_t length) { return (length + 127) / 128 * 128; };
  return emptyOnCurrentDevice({batch, heads, rounded(queries), rounded(keys)}, type);
}

Tensor emptyGradientOfBias(const Tensor& bias) {
  std::vector<int64_t> sizes = bias.sizes().vec();
  const int64_t length = sizes.back();
  sizes.back() = (length + 15) / 16 * 16;
  return emptyOnCurrentDevice(sizes, bias.scalar_type()).narrow(-1, 0, length);
}

std::optional<Tensor> ifDefined(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

std::optional<Tensor> ifDefined(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? ifDefined(*tensor) : std::nullopt;
}

int64_t paddedLength(int64_t queries) { return (queries + 31) / 32 * 32; }

std::optional<Tensor> seedOf(const Tensor& seed, double dropout_p) {
  return dropout_p > 0 ? std::optional<Tensor>(seed) : std::nullopt;
}

namespace {

// The functions below run on the worker.

void attentionKernel(const Tensor& query, const Tensor& key, const Tensor& value,
                     const std::optional<Tensor>& bias, const std::optional<Tensor>& seed,
                     const AttentionCall& call, Tensor& output, Tensor& logsumexp,
                     std::optional<Tensor>& debug_mask) {
  Noise noise(seed, call.dropout_p);
  const int64_t queries = query.size(2);
  if (logsumexp.size(2) <= queries) {
    attend(query, key, value, bias, call, noise, output, logsumexp, debug_mask);
    return;
  }
  attend(query, key, value, bias, call, noise, output, logsumexp.narrow(2, 0, queries), debug_mask);
  logsumexp.narrow(2, queries, logsumexp.size(2) - queries).fill_(kInfinity);
}

void attentionBackwardKernel(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                             const Tensor& value, const std::optional<Tensor>& bias,
                             const Tensor& output, const Tensor& logsumexp,
                             const std::optional<Tensor>& seed, const AttentionCall& call,
                             Tensor& grad_query, Tensor& grad_key, Tensor& grad_value,
                             std::optional<Tensor>& grad_bias) {
  Noise noise(seed, call.dropout_p);
  attendBackward(grad_output, query, key, value, bias, call, noise, output,
                 logsumexp.narrow(2, 0, query.size(2)), grad_query, grad_key, grad_value,
                 grad_bias);
}

// The functions below run on the calling thread.

void checkAttention(const char* operation, const Tensor& query, const Tensor& key,
                    const Tensor& value, const std::optional<Tensor>& bias) {
  for (const Tensor* one : {&query, &key, &value}) {
    TORCH_CHECK(one->dim() == 4, operation, ": expected tensors of 4 dimensions, got ", one->dim());
    TORCH_CHECK(one->scalar_type() == query.scalar_type() && one->is_floating_point() &&
                    one->element_size() >= static_cast<int64_t>(sizeof(c10::Half)),
                operation, ": expected tensors of one floating-point type of 16 bits or more, got ",
                query.scalar_type(), " and ", one->scalar_type());
  }
  TORCH_CHECK(key.size(2) == value.size(2), "Key and Value must have the same sequence length");
  TORCH_CHECK(query.size(0) == key.size(0) && query.size(0) == value.size(0) &&
                  query.size(3) == key.size(3),
              operation, ": expected queries, keys and values of matching sizes, got ",
              query.sizes(), ", ", key.sizes(), " and ", value.sizes());
  for (const Tensor* one : {&key, &value}) {
    TORCH_CHECK(one->size(1) > 0 && query.size(1) % one->size(1) == 0, operation,
                ": expected the number of query heads to be a multiple of that of key heads, got ",
                query.size(1), " and ", one->size(1));
  }
  checkSameDevice(operation, query.device(), {&key, &value});
  if (bias.has_value()) {
    checkSameDevice(operation, query.device(), {&*bias});
    TORCH_CHECK(bias->is_floating_point(), operation, ": expected a floating-point bias, got ",
                bias->scalar_type());
  }
}

// In the memory order of [batch, length, heads, numbers].
Tensor emptyHeadsInside(const Tensor& like, int64_t numbers) {
  const int64_t heads = like.size(1);
  const int64_t length = like.size(2);
  return emptyStridedOnCurrentDevice({like.size(0), heads, length, numbers},
                                     {length * heads * numbers, numbers, heads * numbers, 1},
                                     like.scalar_type());
}

Tensor emptyHeadsInside(const Tensor& like) { return emptyHeadsInside(like, like.size(3)); }

// In the memory order of a tensor.
Tensor emptyOfSameOrder(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense()
             ? emptyStridedOnCurrentDevice(tensor.sizes(), tensor.strides(), tensor.scalar_type())
             : at::empty_like(tensor);
}

// The same for another size of the last dimension.
Tensor emptyOfSameOrder(const Tensor& tensor, int64_t numbers) {
  if (tensor.size(-1) == numbers) {
    return emptyOfSameOrder(tensor);
  }
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.back() = numbers;
  std::vector<int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t one, int64_t other) {
    return tensor.stride(one) > tensor.stride(other);
  });
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  std::for_each(order.rbegin(), order.rend(), [&](int64_t dim) {
    strides[dim] = stride;
    stride *= sizes[dim];
  });
  return emptyStridedOnCurrentDevice(sizes, strides, tensor.scalar_type());
}

Tensor emptySums(const Tensor& query, int64_t length) {
  return emptyOnCurrentDevice({query.size(0), query.size(1), length},
                              at::toOpMathType(query.scalar_type()));
}

// A bias for each element of the batch. torch.vmap puts its dimension before the batch of the
// queries, and leaves a bias that it does not batch.
std::optional<Tensor> biasOfBatch(const std::optional<Tensor>& bias, const Tensor& query) {
  if (!bias.has_value() || bias->dim() != 4) {
    return bias;
  }
  const int64_t count = bias->size(0);
  const int64_t batch = query.size(0);
  const bool is_shared = count > 1 && count < batch && batch % count == 0;
  return is_shared ? bias->repeat({batch / count, 1, 1, 1}) : *bias;
}

bool needsGradient(const std::optional<Tensor>& bias) {
  return bias.has_value() && bias->requires_grad();
}

using FusedAttention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;
using GradientsWithBias = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Launches the forward pass on the current device and returns its random state.
template <c10::openreg::KernelName Name>
RandomState enqueueForward(const Tensor& query, const Tensor& key, const Tensor& value,
                           const std::optional<Tensor>& bias, const AttentionCall& call,
                           Tensor& output, Tensor& logsumexp) {
  RandomState state = drawRandomState(query.device(), call, /*is_flash=*/false);
  enqueue<Name>(query.device(), attentionKernel, query, key, value, bias,
                seedOf(state.seed, call.dropout_p), call, output, logsumexp,
                std::optional<Tensor>());
  return state;
}

// What a backward pass reads of the forward one.
struct Saved {
  Tensor query;
  Tensor key;
  Tensor value;
  std::optional<Tensor> bias;
  Tensor output;
  Tensor logsumexp;
  Tensor seed;
};

void checkBackward(const char* operation, const Tensor& grad_out, const Saved& saved) {
  checkAttention(operation, saved.query, saved.key, saved.value, saved.bias);
  checkSameDevice(operation, saved.query.device(), {&grad_out, &saved.output, &saved.logsumexp});
}

using EmptyGradient = Tensor (*)(const Tensor&);

// Launches the backward pass. Operators differ in the memory order of the gradients. The bias has
// one if the call says so.
template <c10::openreg::KernelName Name>
GradientsWithBias enqueueBackward(const Tensor& grad_out, const Saved& saved,
                                  const AttentionCall& call, EmptyGradient empty,
                                  EmptyGradient empty_for_bias = nullptr) {
  const c10::DeviceGuard guard(saved.query.device());
  Tensor grad_query = empty(saved.query);
  Tensor grad_key = empty(saved.key);
  Tensor grad_value = empty(saved.value);
  std::optional<Tensor> grad_bias;
  if (call.has_bias_gradient) {
    grad_bias = empty_for_bias(*saved.bias);
  }
  enqueue<Name>(saved.query.device(), attentionBackwardKernel, grad_out, saved.query, saved.key,
                saved.value, saved.bias, saved.output, saved.logsumexp,
                seedOf(saved.seed, call.dropout_p), call, grad_query, grad_key, grad_value,
                grad_bias);
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value),
          std::move(grad_bias).value_or(Tensor())};
}

Gradients withoutBias(GradientsWithBias gradients) {
  auto& [query, key, value, bias] = gradients;
  return {std::move(query), std::move(key), std::move(value)};
}

FusedAttention flashAttention(const Tensor& query, const Tensor& key, const Tensor& value,
                              double dropout_p, bool is_causal, bool return_debug_mask,
                              std::optional<double> scale) {
  checkAttention("_scaled_dot_product_flash_attention", query, key, value, std::nullopt);
  checkFlashAsCuda(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2));
  const c10::DeviceGuard guard(query.device());
  const AttentionCall call{.dropout_p = dropout_p, .is_causal = is_causal, .scale = scale};
  const ScalarType type = query.scalar_type();
  Tensor output = emptyOfSameOrder(query, value.size(3));
  Tensor logsumexp = emptySums(query, query.size(2));
  std::optional<Tensor> debug_mask;
  if (return_debug_mask) {
    debug_mask =
        emptyDebugMask(query.size(0), query.size(1), query.size(2), key.size(2), dropout_p, type);
  }
  RandomState state = drawRandomState(query.device(), call, /*is_flash=*/true);
  enqueue<"aten::_scaled_dot_product_flash_attention">(
      query.device(), attentionKernel, query, key, value, std::optional<Tensor>(),
      seedOf(state.seed, dropout_p), call, output, logsumexp, debug_mask);
  return {std::move(output),
          std::move(logsumexp),
          Tensor(),
          Tensor(),
          query.size(2),
          key.size(2),
          std::move(state.seed),
          std::move(state.offset),
          debug_mask.has_value() ? *debug_mask : emptyOnCurrentDevice({0}, type)};
}

Gradients flashAttentionBackward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                 const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                 const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
                                 c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p,
                                 bool is_causal, const Tensor& philox_seed,
                                 const Tensor& /*philox_offset*/, std::optional<double> scale) {
  if (!grad_out.defined()) {
    return {};
  }
  const Saved saved{query, key, value, std::nullopt, out, logsumexp, philox_seed};
  checkBackward("_scaled_dot_product_flash_attention_backward", grad_out, saved);
  checkFlashAsCuda(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2));
  warnOfOrder("Flash Attention");
  return withoutBias(enqueueBackward<"aten::_scaled_dot_product_flash_attention_backward">(
      grad_out, saved, {.dropout_p = dropout_p, .is_causal = is_causal, .scale = scale},
      emptyOfSameOrder));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficientAttention(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const std::optional<Tensor>& attn_bias, bool compute_log_sumexp, double dropout_p,
    bool is_causal, std::optional<double> scale) {
  constexpr int64_t kMaxBatch = (int64_t{1} << 16) - 1;
  checkAttention("_scaled_dot_product_efficient_attention", query, key, value, attn_bias);
  TORCH_CHECK(query.size(0) <= kMaxBatch || dropout_p == 0,
              "Efficient attention cannot produce valid seed and offset outputs when the batch "
              "size exceeds (",
              kMaxBatch, ").");
  checkEfficientAsCuda(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                       attn_bias);
  const c10::DeviceGuard guard(query.device());
  Tensor output = emptyHeadsInside(query, value.size(3));
  Tensor logsumexp = emptySums(query, compute_log_sumexp ? paddedLength(query.size(2)) : 0);
  RandomState state = enqueueForward<"aten::_scaled_dot_product_efficient_attention">(
      query, key, value, biasOfBatch(attn_bias, query),
      {.dropout_p = dropout_p,
       .is_causal = is_causal,
       .scale = scale,
       .has_bias_gradient = needsGradient(attn_bias)},
      output, logsumexp);
  return {std::move(output), std::move(logsumexp), std::move(state.seed), std::move(state.offset)};
}

GradientsWithBias efficientAttentionBackward(const Tensor& grad_out, const Tensor& query,
                                             const Tensor& key, const Tensor& value,
                                             const Tensor& attn_bias, const Tensor& out,
                                             const Tensor& logsumexp, const Tensor& philox_seed,
                                             const Tensor& /*philox_offset*/, double dropout_p,
                                             std::array<bool, 4> grad_input_mask, bool is_causal,
                                             std::optional<double> scale) {
  if (!grad_out.defined()) {
    return {};
  }
  const Saved saved{query, key, value, ifDefined(attn_bias), out, logsumexp, philox_seed};
  checkBackward("_scaled_dot_product_efficient_attention_backward", grad_out, saved);
  checkEfficientAsCuda(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                       saved.bias);
  warnOfOrder("Memory Efficient attention");
  return enqueueBackward<"aten::_scaled_dot_product_efficient_attention_backward">(
      grad_out, saved,
      {.dropout_p = dropout_p,
       .is_causal = is_causal,
       .scale = scale,
       .has_bias_gradient = grad_input_mask[3] && saved.bias.has_value()},
      emptyHeadsInside, emptyGradientOfBias);
}

FusedAttention cudnnAttention(const Tensor& query, const Tensor& key, const Tensor& value,
                              const std::optional<Tensor>& attn_bias, bool /*compute_log_sumexp*/,
                              double dropout_p, bool is_causal, bool /*return_debug_mask*/,
                              std::optional<double> scale) {
  checkAttention("_scaled_dot_product_cudnn_attention", query, key, value, attn_bias);
  const c10::DeviceGuard guard(query.device());
  Tensor output = emptyOfSameOrder(query, value.size(3));
  Tensor logsumexp = emptySums(query, query.size(2));
  RandomState state = enqueueForward<"aten::_scaled_dot_product_cudnn_attention">(
      query, key, value, attn_bias,
      {.dropout_p = dropout_p,
       .is_causal = is_causal,
       .scale = scale,
       .has_bias_gradient = needsGradient(attn_bias)},
      output, logsumexp);
  return {std::move(output),
          logsumexp.unsqueeze(-1),
          Tensor(),
          Tensor(),
          query.size(2),
          key.size(2),
          std::move(state.seed),
          std::move(state.offset),
          Tensor()};
}

Gradients cudnnAttentionBackward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                 const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                 const Tensor& philox_seed, const Tensor& /*philox_offset*/,
                                 const Tensor& attn_bias, const Tensor& /*cum_seq_q*/,
                                 const Tensor& /*cum_seq_k*/, c10::SymInt /*max_q*/,
                                 c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
                                 std::optional<double> scale) {
  if (!grad_out.defined()) {
    return {};
  }
  const Saved saved{query,      key, value, ifDefined(attn_bias), out, logsumexp.squeeze(-1),
                    philox_seed};
  checkBackward("_scaled_dot_product_cudnn_attention_backward", grad_out, saved);
  return withoutBias(enqueueBackward<"aten::_scaled_dot_product_cudnn_attention_backward">(
      grad_out, saved, {.dropout_p = dropout_p, .is_causal = is_causal, .scale = scale},
      emptyOfSameOrder));
}

FusedAttention fusedAttention(const Tensor& query, const Tensor& key, const Tensor& value,
                              const std::optional<Tensor>& attn_bias, double dropout_p,
                              bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  constexpr const char* kOperation = "_scaled_dot_product_fused_attention_overrideable";
  TORCH_CHECK_NOT_IMPLEMENTED(
      !return_debug_mask, kOperation,
      ": expected return_debug_mask=False, got True; openreg keeps no debug mask");
  checkAttention(kOperation, query, key, value, attn_bias);
  const c10::DeviceGuard guard(query.device());
  Tensor output = emptyOfSameOrder(query, value.size(3));
  const int64_t heads = query.size(1);
  const int64_t length = query.size(2);
  Tensor logsumexp =
      emptyStridedOnCurrentDevice({query.size(0), heads, length}, {length * heads, 1, heads},
                                  at::toOpMathType(query.scalar_type()));
  RandomState state = enqueueForward<"aten::_scaled_dot_product_fused_attention_overrideable">(
      query, key, value, attn_bias,
      {.dropout_p = dropout_p,
       .is_causal = is_causal,
       .scale = scale,
       .has_bias_gradient = needsGradient(attn_bias)},
      output, logsumexp);
  const Tensor none = emptyOnCurrentDevice({0}, kLong);
  return {std::move(output),     std::move(logsumexp),    none, none, query.size(2), key.size(2),
          std::move(state.seed), std::move(state.offset), none};
}

GradientsWithBias fusedAttentionBackward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, std::array<bool, 4> grad_input_mask, const Tensor& out,
    const Tensor& logsumexp, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
    c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
    const Tensor& philox_seed, const Tensor& /*philox_offset*/, std::optional<double> scale) {
  if (!grad_out.defined()) {
    return {};
  }
  const Saved saved{query, key, value, ifDefined(attn_bias), out, logsumexp, philox_seed};
  checkBackward("_scaled_dot_product_fused_attention_overrideable_backward", grad_out, saved);
  return enqueueBackward<"aten::_scaled_dot_product_fused_attention_overrideable_backward">(
      grad_out, saved,
      {.dropout_p = dropout_p,
       .is_causal = is_causal,
       .scale = scale,
       .has_bias_gradient = grad_input_mask[3] && saved.bias.has_value()},
      emptyHeadsInside, emptyOfSameOrder);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_scaled_dot_product_flash_attention", TORCH_FN(flashAttention));
  m.impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(flashAttentionBackward));
  m.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficientAttention));
  m.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficientAttentionBackward));
  m.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(cudnnAttention));
  m.impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(cudnnAttentionBackward));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(fusedAttention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward",
         TORCH_FN(fusedAttentionBackward));
}

}  // namespace at::openreg
