// Memory-efficient attention with the interface of CUDA's operators: sequences before heads, and
// concatenated sequences of different lengths. Each call is one kernel; with dropout, another one
// draws the seed first. The kernel reads the lengths, so the host does not wait for them.

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_efficient_attention_backward_ops.h>
#include <ATen/ops/_efficient_attention_forward_ops.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "csrc/aten/attention/Attention.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// The operators' numbers for masks.
enum class MaskType : int64_t { kNone = 0, kCausalFromFirst = 1, kCausalFromLast = 2 };

Window windowOfMask(MaskType mask) {
  return mask == MaskType::kCausalFromLast ? Window{-1, 0} : kWholeWindow;
}

// The parts of the tensors of a call, as [batch, heads, length, numbers]: one, or one for each
// sequence.
class Parts {
 public:
  Parts(const Tensor& query, const Tensor& key, const std::optional<Tensor>& cu_seqlens_q,
        const std::optional<Tensor>& cu_seqlens_k) {
    if (cu_seqlens_q.has_value()) {
      constexpr const char* kOperation = "_efficient_attention_forward";
      queries_.emplace(kOperation, *cu_seqlens_q, query[0]);
      keys_.emplace(kOperation, *cu_seqlens_k, key[0]);
    }
  }

  size_t size() const { return queries_.has_value() ? queries_->size() : 1; }
  Tensor ofQueries(const Tensor& tensor, size_t i) const { return part(queries_, tensor, i); }
  Tensor ofKeys(const Tensor& tensor, size_t i) const { return part(keys_, tensor, i); }

  // Of log-sum-exps, which are longer than the queries.
  Tensor ofSums(const Tensor& sums, const Tensor& query, size_t i) const {
    if (sums.numel() == 0) {
      return sums;
    }
    return queries_.has_value() ? sums.narrow(0, i, 1).narrow(2, 0, queries_->length(i))
                                : sums.narrow(2, 0, query.size(1));
  }

 private:
  static Tensor part(const std::optional<Sequences>& sequences, const Tensor& tensor, size_t i) {
    return sequences.has_value() ? sequences->part(tensor[0], i) : tensor.transpose(1, 2);
  }

  std::optional<Sequences> queries_;
  std::optional<Sequences> keys_;
};

// The functions below run on the worker.

void efficientForwardKernel(const Tensor& query, const Tensor& key, const Tensor& value,
                            const std::optional<Tensor>& bias,
                            const std::optional<Tensor>& cu_seqlens_q,
                            const std::optional<Tensor>& cu_seqlens_k, MaskType mask,
                            const std::optional<Tensor>& seed, const AttentionCall& call,
                            Tensor& output, Tensor& logsumexp) {
  Noise noise(seed, call.dropout_p);
  const Parts parts(query, key, cu_seqlens_q, cu_seqlens_k);
  logsumexp.fill_(kInfinity);
  if (cu_seqlens_q.has_value()) {
    output.zero_();  // for elements outside of all sequences
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    attendWithin(windowOfMask(mask), parts.ofQueries(query, i), parts.ofKeys(key, i),
                 parts.ofKeys(value, i), bias, call, noise, parts.ofQueries(output, i),
                 parts.ofSums(logsumexp, query, i));
  }
}

void efficientBackwardKernel(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                             const Tensor& value, const std::optional<Tensor>& bias,
                             const Tensor& output, const std::optional<Tensor>& cu_seqlens_q,
                             const std::optional<Tensor>& cu_seqlens_k, const Tensor& logsumexp,
                             MaskType mask, const std::optional<Tensor>& seed,
                             const AttentionCall& call, Tensor& grad_query, Tensor& grad_key,
                             Tensor& grad_value, std::optional<Tensor>& grad_bias) {
  Noise noise(seed, call.dropout_p);
  const Parts parts(query, key, cu_seqlens_q, cu_seqlens_k);
  const Tensor grad = grad_output.contiguous();
  if (cu_seqlens_q.has_value()) {
    for (Tensor* one : {&grad_query, &grad_key, &grad_value}) {
      one->zero_();
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    attendWithinBackward(windowOfMask(mask), parts.ofQueries(grad, i), parts.ofQueries(query, i),
                         parts.ofKeys(key, i), parts.ofKeys(value, i), bias, call, noise,
                         parts.ofQueries(output, i), parts.ofSums(logsumexp, query, i),
                         parts.ofQueries(grad_query, i), parts.ofKeys(grad_key, i),
                         parts.ofKeys(grad_value, i), grad_bias);
  }
}

// The functions below run on the calling thread.

void checkEfficient(const char* operation, const Tensor& query, const Tensor& key,
                    const Tensor& value, const std::optional<Tensor>& bias,
                    const std::optional<Tensor>& cu_seqlens_q,
                    const std::optional<Tensor>& cu_seqlens_k, int64_t custom_mask_type) {
  for (const Tensor* one : {&query, &key, &value}) {
    TORCH_CHECK(one->dim() == 4, operation, ": expected tensors of 4 dimensions, got ", one->dim());
    TORCH_CHECK(one->scalar_type() == query.scalar_type() && one->is_floating_point(), operation,
                ": expected floating-point tensors of one type, got ", query.scalar_type(), " and ",
                one->scalar_type());
  }
  TORCH_CHECK(query.size(0) == key.size(0) && query.size(0) == value.size(0) &&
                  key.size(1) == value.size(1) && query.size(2) == key.size(2) &&
                  query.size(2) == value.size(2) && query.size(3) == key.size(3),
              operation, ": expected queries, keys and values of matching sizes, got ",
              query.sizes(), ", ", key.sizes(), " and ", value.sizes());
  TORCH_CHECK(0 <= custom_mask_type && custom_mask_type <= 2,
              "invalid value for `custom_mask_type`");
  TORCH_CHECK(cu_seqlens_q.has_value() == cu_seqlens_k.has_value(), operation,
              ": expected both of cu_seqlens_q and cu_seqlens_k, or none");
  checkSameDevice(operation, query.device(), {&key, &value});
  if (bias.has_value()) {
    checkSameDevice(operation, query.device(), {&*bias});
  }
  if (cu_seqlens_q.has_value()) {
    TORCH_CHECK(!bias.has_value(), "cu seqlen + bias not supported");
    TORCH_CHECK(query.size(0) == 1, "cu_seqlen only supports batch_size=1");
    for (const Tensor* one : {&*cu_seqlens_q, &*cu_seqlens_k}) {
      TORCH_CHECK(one->dim() == 1 && one->scalar_type() == kInt &&
                      one->numel() == cu_seqlens_q->numel() && one->numel() > 0,
                  operation, ": expected cu_seqlens_q and cu_seqlens_k of one length, int32, got ",
                  cu_seqlens_q->sizes(), " and ", one->sizes(), " of ", one->scalar_type());
    }
    checkSameDevice(operation, query.device(), {&*cu_seqlens_q, &*cu_seqlens_k});
  }
  checkEfficientAsCuda(query, key, value, bias);
}

AttentionCall callOf(double dropout_p, int64_t custom_mask_type, std::optional<double> scale,
                     bool has_bias_gradient) {
  return {.dropout_p = dropout_p,
          .is_causal = static_cast<MaskType>(custom_mask_type) == MaskType::kCausalFromFirst,
          .scale = scale,
          .has_bias_gradient = has_bias_gradient};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt> efficientForward(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& cu_seqlens_q, const std::optional<Tensor>& cu_seqlens_k,
    std::optional<c10::SymInt> max_seqlen_q, std::optional<c10::SymInt> max_seqlen_k,
    double dropout_p, int64_t custom_mask_type, bool compute_log_sumexp,
    std::optional<double> scale, const std::optional<Tensor>& seqlen_k,
    std::optional<int64_t> window_size) {
  constexpr const char* kOperation = "_efficient_attention_forward";
  TORCH_CHECK_NOT_IMPLEMENTED(!seqlen_k.has_value() && window_size.value_or(0) == 0, kOperation,
                              ": expected no seqlen_k and no window_size");
  const c10::DeviceGuard guard(query.device());
  checkEfficient(kOperation, query, key, value, bias, cu_seqlens_q, cu_seqlens_k, custom_mask_type);
  const bool has_lengths = cu_seqlens_q.has_value();
  TORCH_CHECK(!has_lengths || max_seqlen_q.has_value(), kOperation,
              ": expected max_seqlen_q with cu_seqlens_q");
  const int64_t queries = has_lengths ? max_seqlen_q->guard_int(__FILE__, __LINE__) : query.size(1);
  const c10::SymInt keys = max_seqlen_k.value_or(key.size(1));
  const AttentionCall call =
      callOf(dropout_p, custom_mask_type, scale, bias.has_value() && bias->requires_grad());
  const ScalarType type = query.scalar_type();
  Tensor output =
      emptyOnCurrentDevice({query.size(0), query.size(1), query.size(2), value.size(3)}, type);
  Tensor logsumexp =
      emptyOnCurrentDevice({has_lengths ? cu_seqlens_q->size(0) - 1 : query.size(0), query.size(2),
                            compute_log_sumexp ? paddedLength(queries) : 0},
                           at::toOpMathType(type));
  RandomState state = drawRandomState(query.device(), call, /*is_flash=*/false);
  enqueue<"aten::_efficient_attention_forward">(
      query.device(), efficientForwardKernel, query, key, value, bias, cu_seqlens_q, cu_seqlens_k,
      static_cast<MaskType>(custom_mask_type), seedOf(state.seed, dropout_p), call, output,
      logsumexp);
  return {std::move(output),
          std::move(logsumexp),
          std::move(state.seed),
          std::move(state.offset),
          queries,
          keys};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficientBackward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const std::optional<Tensor>& given_bias, const Tensor& out,
    const std::optional<Tensor>& cu_seqlens_q, const std::optional<Tensor>& cu_seqlens_k,
    c10::SymInt /*max_seqlen_q*/, c10::SymInt /*max_seqlen_k*/, const Tensor& logsumexp,
    double dropout_p, const Tensor& philox_seed, const Tensor& /*philox_offset*/,
    int64_t custom_mask_type, bool bias_requires_grad, std::optional<double> scale,
    std::optional<int64_t> /*num_splits_key*/, std::optional<int64_t> window_size,
    bool shared_storage_dqdkdv) {
  constexpr const char* kOperation = "_efficient_attention_backward";
  if (!grad_out.defined()) {
    return {};
  }
  const std::optional<Tensor> bias = ifDefined(given_bias);
  const std::optional<Tensor> of_queries = ifDefined(cu_seqlens_q);
  const std::optional<Tensor> of_keys = ifDefined(cu_seqlens_k);
  TORCH_CHECK_NOT_IMPLEMENTED(window_size.value_or(0) == 0, kOperation,
                              ": expected no window_size");
  const c10::DeviceGuard guard(query.device());
  checkEfficient(kOperation, query, key, value, bias, of_queries, of_keys, custom_mask_type);
  checkSameDevice(kOperation, query.device(), {&grad_out, &out, &logsumexp});
  warnOfOrder("Memory Efficient attention");
  Tensor grad_query;
  Tensor grad_key;
  Tensor grad_value;
  if (shared_storage_dqdkdv) {
    TORCH_CHECK(query.size(1) == key.size(1), "seqlen must match for `shared_storage_dqdkdv`");
    TORCH_CHECK(query.size(3) == value.size(3),
                "embedding dim must match for `shared_storage_dqdkdv`");
    const Tensor shared = emptyOnCurrentDevice(
        {query.size(0), query.size(1), 3, query.size(2), query.size(3)}, query.scalar_type());
    grad_query = shared.select(2, 0);
    grad_key = shared.select(2, 1);
    grad_value = shared.select(2, 2);
  } else {
    grad_query = emptyOnCurrentDevice(query.sizes(), query.scalar_type());
    grad_key = emptyOnCurrentDevice(key.sizes(), key.scalar_type());
    grad_value = emptyOnCurrentDevice(value.sizes(), value.scalar_type());
  }
  const bool has_bias_gradient = bias_requires_grad && bias.has_value();
  std::optional<Tensor> grad_bias;
  if (has_bias_gradient) {
    grad_bias = emptyGradientOfBias(*bias);
  }
  enqueue<"aten::_efficient_attention_backward">(
      query.device(), efficientBackwardKernel, grad_out, query, key, value, bias, out, of_queries,
      of_keys, logsumexp, static_cast<MaskType>(custom_mask_type), seedOf(philox_seed, dropout_p),
      callOf(dropout_p, custom_mask_type, scale, has_bias_gradient), grad_query, grad_key,
      grad_value, grad_bias);
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value),
          grad_bias.value_or(Tensor())};
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  registerIfSame<at::_ops::_efficient_attention_forward, &efficientForward>(
      m, "_efficient_attention_forward");
  registerIfSame<at::_ops::_efficient_attention_backward, &efficientBackward>(
      m, "_efficient_attention_backward");
}

}  // namespace at::openreg
