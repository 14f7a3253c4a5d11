// Flash attention with the interface of CUDA's operators, which torch.nn.attention.varlen calls:
// sequences before heads, concatenated sequences of different lengths, and windows. Each call is
// one kernel, which runs the CPU's flash attention for each sequence. The kernel reads the lengths,
// so the host does not wait for them.

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_backward_ops.h>
#include <ATen/ops/_flash_attention_forward_no_dropout_inplace_ops.h>
#include <ATen/ops/_flash_attention_forward_ops.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "csrc/aten/attention/Attention.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// The functions below run on the worker.

void flashForwardKernel(const Tensor& query, const Tensor& key, const Tensor& value,
                        const std::optional<Tensor>& cum_seq_q,
                        const std::optional<Tensor>& cum_seq_k, const Window& window,
                        const std::optional<Tensor>& seed, const AttentionCall& call,
                        Tensor& output, Tensor& logsumexp, std::optional<Tensor>& debug_mask) {
  Noise noise(seed, call.dropout_p);
  if (!cum_seq_q.has_value()) {
    attendWithin(window, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                 std::nullopt, call, noise, output.transpose(1, 2), logsumexp, debug_mask);
    return;
  }
  const Sequences queries("_flash_attention_forward", *cum_seq_q, query);
  const Sequences keys("_flash_attention_forward", *cum_seq_k, key);
  output.zero_();  // for elements outside of all sequences
  logsumexp.fill_(kInfinity);
  for (size_t i = 0; i < queries.size(); ++i) {
    attendWithin(
        window, queries.part(query, i), keys.part(key, i), keys.part(value, i), std::nullopt, call,
        noise, queries.part(output, i), queries.partOfSums(logsumexp, i),
        debug_mask.has_value() ? std::optional<Tensor>(debug_mask->narrow(0, i, 1)) : std::nullopt);
  }
}

void flashBackwardKernel(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                         const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                         const std::optional<Tensor>& cum_seq_q,
                         const std::optional<Tensor>& cum_seq_k, const Window& window,
                         const std::optional<Tensor>& seed, const AttentionCall& call,
                         Tensor& grad_query, Tensor& grad_key, Tensor& grad_value) {
  Noise noise(seed, call.dropout_p);
  const Tensor grad = grad_output.contiguous();
  if (!cum_seq_q.has_value()) {
    attendWithinBackward(window, grad.transpose(1, 2), query.transpose(1, 2), key.transpose(1, 2),
                         value.transpose(1, 2), std::nullopt, call, noise, output.transpose(1, 2),
                         logsumexp, grad_query.transpose(1, 2), grad_key.transpose(1, 2),
                         grad_value.transpose(1, 2));
    return;
  }
  const Sequences queries("_flash_attention_backward", *cum_seq_q, query);
  const Sequences keys("_flash_attention_backward", *cum_seq_k, key);
  for (Tensor* one : {&grad_query, &grad_key, &grad_value}) {
    one->zero_();
  }
  for (size_t i = 0; i < queries.size(); ++i) {
    attendWithinBackward(window, queries.part(grad, i), queries.part(query, i), keys.part(key, i),
                         keys.part(value, i), std::nullopt, call, noise, queries.part(output, i),
                         queries.partOfSums(logsumexp, i), queries.part(grad_query, i),
                         keys.part(grad_key, i), keys.part(grad_value, i));
  }
}

// The functions below run on the calling thread.

void checkFlash(const char* operation, const Tensor& query, const Tensor& key, const Tensor& value,
                const std::optional<Tensor>& cum_seq_q, const std::optional<Tensor>& cum_seq_k) {
  const bool has_lengths = cum_seq_q.has_value();
  TORCH_CHECK(has_lengths == cum_seq_k.has_value(), operation,
              ": expected both of cum_seq_q and cum_seq_k, or none");
  const int64_t dim = has_lengths ? 3 : 4;
  for (const Tensor* one : {&query, &key, &value}) {
    TORCH_CHECK(one->dim() == dim, operation, ": expected tensors of ", dim, " dimensions, got ",
                one->dim());
    TORCH_CHECK(one->scalar_type() == query.scalar_type() && one->is_floating_point(), operation,
                ": expected floating-point tensors of one type, got ", query.scalar_type(), " and ",
                one->scalar_type());
  }
  TORCH_CHECK(key.sizes() == value.sizes() && key.size(-1) == query.size(-1) &&
                  (has_lengths || key.size(0) == query.size(0)),
              operation, ": expected queries, keys and values of matching sizes, got ",
              query.sizes(), ", ", key.sizes(), " and ", value.sizes());
  TORCH_CHECK(key.size(-2) > 0 && query.size(-2) % key.size(-2) == 0, operation,
              ": expected the number of query heads to be a multiple of that of key heads, got ",
              query.size(-2), " and ", key.size(-2));
  if (has_lengths) {
    for (const Tensor* one : {&*cum_seq_q, &*cum_seq_k}) {
      TORCH_CHECK(one->dim() == 1 && one->scalar_type() == kInt &&
                      one->numel() == cum_seq_q->numel() && one->numel() > 0,
                  operation, ": expected cum_seq_q and cum_seq_k of one length, int32, got ",
                  cum_seq_q->sizes(), " and ", one->sizes(), " of ", one->scalar_type());
    }
    checkSameDevice(operation, query.device(), {&*cum_seq_q, &*cum_seq_k});
  }
  checkSameDevice(operation, query.device(), {&key, &value});
  checkFlashAsCuda(query, key, value);
}

// Operators represent a missing bound by -1 or none.
Window windowOf(bool is_causal, const std::optional<c10::SymInt>& left,
                const std::optional<c10::SymInt>& right) {
  const auto number = [](const std::optional<c10::SymInt>& bound) {
    return bound.has_value() ? bound->guard_int(__FILE__, __LINE__) : -1;
  };
  return {number(left), is_causal ? 0 : number(right)};
}

Tensor emptyLike(const Tensor& tensor) {
  return emptyOnCurrentDevice(tensor.sizes(), tensor.scalar_type());
}

// The results of the forward pass other than the output.
struct FlashResults {
  Tensor logsumexp;
  RandomState state;
  std::optional<Tensor> debug_mask;
};

FlashResults flashForwardInto(Tensor& out, const Tensor& query, const Tensor& key,
                              const Tensor& value, const std::optional<Tensor>& cum_seq_q,
                              const std::optional<Tensor>& cum_seq_k, const c10::SymInt& max_q,
                              const c10::SymInt& max_k, double dropout_p, bool is_causal,
                              bool return_debug_mask, std::optional<double> scale,
                              const std::optional<c10::SymInt>& window_size_left,
                              const std::optional<c10::SymInt>& window_size_right,
                              const std::optional<Tensor>& seqused_k,
                              const std::optional<Tensor>& alibi_slopes,
                              const std::optional<Tensor>& block_table) {
  constexpr const char* kOperation = "_flash_attention_forward";
  TORCH_CHECK_NOT_IMPLEMENTED(
      !seqused_k.has_value() && !alibi_slopes.has_value() && !block_table.has_value(), kOperation,
      ": expected no seqused_k, alibi_slopes and block_table; the CPU's flash attention has none");
  const bool has_lengths = cum_seq_q.has_value();
  const ScalarType type = query.scalar_type();
  // A causal window aligns the last query and the last key; the call itself aligns the first ones.
  const AttentionCall call{.dropout_p = dropout_p, .scale = scale};
  FlashResults results;
  const int64_t heads = query.size(-2);
  results.logsumexp =
      has_lengths
          ? emptyOnCurrentDevice({heads, query.size(0)}, at::toOpMathType(type))
          : emptyOnCurrentDevice({query.size(0), heads, query.size(1)}, at::toOpMathType(type));
  if (return_debug_mask) {
    results.debug_mask = emptyDebugMask(
        has_lengths ? cum_seq_q->size(0) - 1 : query.size(0), heads,
        has_lengths ? max_q.guard_int(__FILE__, __LINE__) : query.size(1),
        has_lengths ? max_k.guard_int(__FILE__, __LINE__) : key.size(1), dropout_p, type);
  }
  results.state = drawRandomState(query.device(), call, /*is_flash=*/true);
  enqueue<"aten::_flash_attention_forward">(
      query.device(), flashForwardKernel, query, key, value, cum_seq_q, cum_seq_k,
      windowOf(is_causal, window_size_left, window_size_right),
      seedOf(results.state.seed, dropout_p), call, out, results.logsumexp, results.debug_mask);
  return results;
}

Tensor flashForwardInPlace(
    Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value,
    const std::optional<Tensor>& cum_seq_q, const std::optional<Tensor>& cum_seq_k,
    c10::SymInt max_q, c10::SymInt max_k, double dropout_p, bool is_causal, bool return_debug_mask,
    std::optional<double> scale, std::optional<c10::SymInt> window_size_left,
    std::optional<c10::SymInt> window_size_right, const std::optional<Tensor>& seqused_k,
    const std::optional<Tensor>& alibi_slopes, const std::optional<Tensor>& block_table,
    std::optional<int64_t> /*num_splits*/) {
  constexpr const char* kOperation = "_flash_attention_forward_no_dropout_inplace";
  TORCH_CHECK(dropout_p == 0 && !return_debug_mask, kOperation,
              ": expected dropout_p=0 and return_debug_mask=False, got ", dropout_p, " and ",
              return_debug_mask);
  TORCH_CHECK(out.sizes() == query.sizes() && out.scalar_type() == query.scalar_type() &&
                  out.device() == query.device(),
              kOperation, ": expected out of ", query.sizes(), ", ", query.scalar_type(), " on ",
              query.device(), ", got ", out.sizes(), ", ", out.scalar_type(), " on ", out.device());
  const c10::DeviceGuard guard(query.device());
  checkFlash(kOperation, query, key, value, cum_seq_q, cum_seq_k);
  return flashForwardInto(out, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                          is_causal, return_debug_mask, scale, window_size_left, window_size_right,
                          seqused_k, alibi_slopes, block_table)
      .logsumexp;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flashForward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const std::optional<Tensor>& cum_seq_q, const std::optional<Tensor>& cum_seq_k,
    c10::SymInt max_q, c10::SymInt max_k, double dropout_p, bool is_causal, bool return_debug_mask,
    std::optional<double> scale, std::optional<c10::SymInt> window_size_left,
    std::optional<c10::SymInt> window_size_right, const std::optional<Tensor>& seqused_k,
    const std::optional<Tensor>& alibi_slopes, const std::optional<Tensor>& block_table,
    std::optional<int64_t> /*num_splits*/) {
  const c10::DeviceGuard guard(query.device());
  checkFlash("_flash_attention_forward", query, key, value, cum_seq_q, cum_seq_k);
  Tensor output = emptyLike(query);
  FlashResults results =
      flashForwardInto(output, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                       is_causal, return_debug_mask, scale, window_size_left, window_size_right,
                       seqused_k, alibi_slopes, block_table);
  return {std::move(output), std::move(results.logsumexp), std::move(results.state.seed),
          std::move(results.state.offset),
          results.debug_mask.has_value() ? *results.debug_mask
                                         : emptyOnCurrentDevice({0}, query.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor> flashBackward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& logsumexp, const Tensor& cum_seq_q, const Tensor& cum_seq_k,
    c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
    const Tensor& rng_state, const Tensor& /*unused*/, std::optional<double> scale,
    std::optional<c10::SymInt> window_size_left, std::optional<c10::SymInt> window_size_right) {
  constexpr const char* kOperation = "_flash_attention_backward";
  const std::optional<Tensor> of_queries = ifDefined(cum_seq_q);
  const std::optional<Tensor> of_keys = ifDefined(cum_seq_k);
  checkFlash(kOperation, query, key, value, of_queries, of_keys);
  TORCH_CHECK(grad_out.sizes() == query.sizes() && out.sizes() == query.sizes(), kOperation,
              ": expected grad_out and out of the sizes of the queries, ", query.sizes(), ", got ",
              grad_out.sizes(), " and ", out.sizes());
  checkSameDevice(kOperation, query.device(), {&grad_out, &out, &logsumexp});
  warnOfOrder("Flash Attention");
  const c10::DeviceGuard guard(query.device());
  Tensor grad_query = emptyLike(query);
  Tensor grad_key = emptyLike(key);
  Tensor grad_value = emptyLike(value);
  enqueue<"aten::_flash_attention_backward">(
      query.device(), flashBackwardKernel, grad_out, query, key, value, out, logsumexp, of_queries,
      of_keys, windowOf(is_causal, window_size_left, window_size_right),
      seedOf(rng_state, dropout_p), AttentionCall{.dropout_p = dropout_p, .scale = scale},
      grad_query, grad_key, grad_value);
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value)};
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  registerIfSame<at::_ops::_flash_attention_backward, &flashBackward>(m,
                                                                      "_flash_attention_backward");
  registerIfSame<at::_ops::_flash_attention_forward, &flashForward>(m, "_flash_attention_forward");
  registerIfSame<at::_ops::_flash_attention_forward_no_dropout_inplace, &flashForwardInPlace>(
      m, "_flash_attention_forward_no_dropout_inplace");
}

}  // namespace at::openreg
