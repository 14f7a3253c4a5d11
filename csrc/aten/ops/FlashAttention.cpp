// Flash attention with the interface of CUDA's operators, which torch.nn.attention.varlen calls:
// sequences before heads, concatenated sequences of different lengths, and windows. Each call is
// one kernel, which runs the CPU's flash attention for each sequence. The kernel reads the lengths,
// so the host does not wait for them.

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward_ops.h>
#include <ATen/ops/_flash_attention_forward_no_dropout_inplace_ops.h>
#include <ATen/ops/_flash_attention_forward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "csrc/aten/launch/EmptyTensor.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How many keys a query sees before and after its own position; negative means all. The last query
// and the last key have the same position.
using Window = std::array<int64_t, 2>;

// The functions below run on the worker, on tensors of [batch, heads, length, numbers].

// The mask for the CPU's kernel that implements a window.
struct FlashMask {
  bool is_causal = false;
  std::optional<Tensor> bias = std::nullopt;      // [queries, keys]; added to the scores
  std::optional<Tensor> is_blind = std::nullopt;  // [queries]; those that see no key
};

FlashMask maskOf(const Tensor& query, const Tensor& key, const Window& window) {
  const int64_t queries = query.size(2);
  const int64_t keys = key.size(2);
  const auto [before, behind] = window;
  if (before < 0 && behind < 0) {
    return {};
  }
  if (before < 0 && behind == 0 && queries == keys) {
    return {.is_causal = true};
  }
  const Tensor distance = at::arange(keys, kLong).unsqueeze(0) -
                          at::arange(queries, kLong).unsqueeze(1) - (keys - queries);
  Tensor is_hidden = at::zeros({queries, keys}, kBool);
  if (before >= 0) {
    is_hidden.logical_or_(distance < -before);
  }
  if (behind >= 0) {
    is_hidden.logical_or_(distance > behind);
  }
  return {.bias = at::zeros({queries, keys}, query.options()).masked_fill_(is_hidden, -kInfinity),
          .is_blind = is_hidden.all(1)};
}

// Each head of the keys and values is used by the same number of heads of the queries.
Tensor repeatHeads(const Tensor& tensor, const Tensor& query) {
  const int64_t times = query.size(1) / tensor.size(1);
  return times == 1 ? tensor : tensor.repeat_interleave(times, 1);
}

Tensor sumOfHeads(const Tensor& grad, const Tensor& repeated) {
  const int64_t heads = repeated.size(1);
  return grad.size(1) == heads ? grad : grad.unflatten(1, {heads, -1}).sum(2);
}

void attend(const Tensor& query, const Tensor& key, const Tensor& value, const Window& window,
            std::optional<double> scale, const Tensor& output, const Tensor& logsumexp) {
  if (query.numel() == 0) {
    return;
  }
  if (key.numel() == 0) {
    output.zero_();
    logsumexp.fill_(kInfinity);
    return;
  }
  const FlashMask mask = maskOf(query, key, window);
  const auto [attended, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, repeatHeads(key, query), repeatHeads(value, query), /*dropout_p=*/0.0, mask.is_causal,
      mask.bias, scale);
  output.copy_(attended);
  logsumexp.copy_(sums);
  if (mask.is_blind.has_value()) {
    logsumexp.masked_fill_(*mask.is_blind, kInfinity);
  }
}

void attendBackward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                    const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                    const Window& window, std::optional<double> scale, const Tensor& grad_query,
                    const Tensor& grad_key, const Tensor& grad_value) {
  if (query.numel() == 0 || key.numel() == 0) {
    grad_query.zero_();
    grad_key.zero_();
    grad_value.zero_();
    return;
  }
  const FlashMask mask = maskOf(query, key, window);
  const Tensor sums =
      mask.is_blind.has_value() ? logsumexp.masked_fill(*mask.is_blind, 0) : logsumexp;
  const auto [of_query, of_key, of_value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad_output, query, repeatHeads(key, query), repeatHeads(value, query), output, sums,
          /*dropout_p=*/0.0, mask.is_causal, mask.bias, scale);
  grad_query.copy_(of_query);
  grad_key.copy_(sumOfHeads(of_key, key));
  grad_value.copy_(sumOfHeads(of_value, value));
}

// The start and end offsets of sequences that are concatenated along a dimension of `length`.
std::vector<int64_t> boundsOf(const Tensor& cum_seq, int64_t length) {
  const Tensor numbers = cum_seq.to(kLong).contiguous();
  std::vector<int64_t> bounds(numbers.const_data_ptr<int64_t>(),
                              numbers.const_data_ptr<int64_t>() + numbers.numel());
  int64_t last = 0;
  for (const int64_t bound : bounds) {
    TORCH_CHECK(last <= bound && bound <= length,
                "_flash_attention_forward: expected sequence offsets that ascend from 0 to ",
                length, ", got ", bound, " after ", last);
    last = bound;
  }
  return bounds;
}

// Calls `function` with the index of each sequence and its part of each tensor, as [1, heads,
// length, numbers].
class Sequences {
 public:
  Sequences(const Tensor& cum_seq, const Tensor& tensor)
      : bounds_(boundsOf(cum_seq, tensor.size(0))) {}

  size_t size() const { return bounds_.size() - 1; }

  Tensor part(const Tensor& tensor, size_t number) const {
    return narrowed(tensor, 0, number).transpose(0, 1).unsqueeze(0);
  }

  // For tensors of [heads, lengths].
  Tensor partOfSums(const Tensor& sums, size_t number) const {
    return narrowed(sums, 1, number).unsqueeze(0);
  }

 private:
  Tensor narrowed(const Tensor& tensor, int64_t dim, size_t number) const {
    return tensor.narrow(dim, bounds_[number], bounds_[number + 1] - bounds_[number]);
  }

  std::vector<int64_t> bounds_;
};

void flashForwardKernel(const Tensor& query, const Tensor& key, const Tensor& value,
                        const std::optional<Tensor>& cum_seq_q,
                        const std::optional<Tensor>& cum_seq_k, const Window& window,
                        std::optional<double> scale, Tensor& output, Tensor& logsumexp) {
  if (!cum_seq_q.has_value()) {
    attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), window, scale,
           output.transpose(1, 2), logsumexp);
    return;
  }
  const Sequences queries(*cum_seq_q, query);
  const Sequences keys(*cum_seq_k, key);
  output.zero_();  // for elements outside of all sequences
  logsumexp.fill_(kInfinity);
  for (size_t i = 0; i < queries.size(); ++i) {
    attend(queries.part(query, i), keys.part(key, i), keys.part(value, i), window, scale,
           queries.part(output, i), queries.partOfSums(logsumexp, i));
  }
}

void flashBackwardKernel(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                         const Tensor& value, const Tensor& output, const Tensor& logsumexp,
                         const std::optional<Tensor>& cum_seq_q,
                         const std::optional<Tensor>& cum_seq_k, const Window& window,
                         std::optional<double> scale, Tensor& grad_query, Tensor& grad_key,
                         Tensor& grad_value) {
  const Tensor grad = grad_output.contiguous();
  if (!cum_seq_q.has_value()) {
    attendBackward(grad.transpose(1, 2), query.transpose(1, 2), key.transpose(1, 2),
                   value.transpose(1, 2), output.transpose(1, 2), logsumexp, window, scale,
                   grad_query.transpose(1, 2), grad_key.transpose(1, 2),
                   grad_value.transpose(1, 2));
    return;
  }
  const Sequences queries(*cum_seq_q, query);
  const Sequences keys(*cum_seq_k, key);
  for (Tensor* one : {&grad_query, &grad_key, &grad_value}) {
    one->zero_();
  }
  for (size_t i = 0; i < queries.size(); ++i) {
    attendBackward(queries.part(grad, i), queries.part(query, i), keys.part(key, i),
                   keys.part(value, i), queries.part(output, i), queries.partOfSums(logsumexp, i),
                   window, scale, queries.part(grad_query, i), keys.part(grad_key, i),
                   keys.part(grad_value, i));
  }
}

// The functions below run on the calling thread.

void checkFlash(const char* operation, const Tensor& query, const Tensor& key, const Tensor& value,
                const std::optional<Tensor>& cum_seq_q, const std::optional<Tensor>& cum_seq_k,
                double dropout_p) {
  const bool has_lengths = cum_seq_q.has_value();
  TORCH_CHECK_NOT_IMPLEMENTED(dropout_p == 0, operation, ": expected dropout_p=0, got ", dropout_p,
                              "; the CPU's flash attention has no dropout");
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
}

// Operators represent a missing bound by -1 or none.
Window windowOf(bool is_causal, const std::optional<c10::SymInt>& left,
                const std::optional<c10::SymInt>& right) {
  const auto number = [](const std::optional<c10::SymInt>& bound) {
    return bound.has_value() ? bound->guard_int(__FILE__, __LINE__) : -1;
  };
  return {number(left), is_causal ? 0 : number(right)};
}

// Operators whose arguments are not optional represent missing lengths by undefined tensors.
std::optional<Tensor> ifDefined(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

Tensor emptyLike(const Tensor& tensor) {
  return emptyOnCurrentDevice(tensor.sizes(), tensor.scalar_type());
}

Tensor flashForwardInPlace(
    Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value,
    const std::optional<Tensor>& cum_seq_q, const std::optional<Tensor>& cum_seq_k,
    c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
    bool return_debug_mask, std::optional<double> scale,
    std::optional<c10::SymInt> window_size_left, std::optional<c10::SymInt> window_size_right,
    const std::optional<Tensor>& seqused_k, const std::optional<Tensor>& alibi_slopes,
    const std::optional<Tensor>& block_table, std::optional<int64_t> /*num_splits*/) {
  TORCH_CHECK(out.sizes() == query.sizes() && out.scalar_type() == query.scalar_type() &&
                  out.device() == query.device(),
              "_flash_attention_forward_no_dropout_inplace: expected out of ", query.sizes(), ", ",
              query.scalar_type(), " on ", query.device(), ", got ", out.sizes(), ", ",
              out.scalar_type(), " on ", out.device());
  const c10::DeviceGuard guard(query.device());
  constexpr const char* kOperation = "_flash_attention_forward";
  checkFlash(kOperation, query, key, value, cum_seq_q, cum_seq_k, dropout_p);
  TORCH_CHECK_NOT_IMPLEMENTED(!return_debug_mask, kOperation,
                              ": expected return_debug_mask=False, got True; there is no mask");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !seqused_k.has_value() && !alibi_slopes.has_value() && !block_table.has_value(), kOperation,
      ": expected no seqused_k, alibi_slopes and block_table; the CPU's flash attention has none");
  const ScalarType type =
      query.scalar_type() == kDouble ? kDouble : at::toOpMathType(query.scalar_type());
  Tensor logsumexp =
      cum_seq_q.has_value()
          ? emptyOnCurrentDevice({query.size(1), query.size(0)}, type)
          : emptyOnCurrentDevice({query.size(0), query.size(2), query.size(1)}, type);
  enqueue<"aten::_flash_attention_forward">(
      query.device(), flashForwardKernel, query, key, value, cum_seq_q, cum_seq_k,
      windowOf(is_causal, window_size_left, window_size_right), scale, out, logsumexp);
  return logsumexp;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flashForward(
    const Tensor& query, const Tensor& key, const Tensor& value,
    const std::optional<Tensor>& cum_seq_q, const std::optional<Tensor>& cum_seq_k,
    c10::SymInt max_q, c10::SymInt max_k, double dropout_p, bool is_causal, bool return_debug_mask,
    std::optional<double> scale, std::optional<c10::SymInt> window_size_left,
    std::optional<c10::SymInt> window_size_right, const std::optional<Tensor>& seqused_k,
    const std::optional<Tensor>& alibi_slopes, const std::optional<Tensor>& block_table,
    std::optional<int64_t> num_splits) {
  const c10::DeviceGuard guard(query.device());
  Tensor output = emptyLike(query);
  Tensor logsumexp =
      flashForwardInPlace(output, query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                          is_causal, return_debug_mask, scale, window_size_left, window_size_right,
                          seqused_k, alibi_slopes, block_table, num_splits);
  // CUDA's random state for dropout, which is not supported here.
  const TensorOptions numbers = query.options().dtype(kUInt64);
  return {std::move(output), std::move(logsumexp), at::zeros({2}, numbers), at::zeros({}, numbers),
          emptyOnCurrentDevice({0}, query.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor> flashBackward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& logsumexp, const Tensor& cum_seq_q, const Tensor& cum_seq_k,
    c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
    const Tensor& /*rng_state*/, const Tensor& /*unused*/, std::optional<double> scale,
    std::optional<c10::SymInt> window_size_left, std::optional<c10::SymInt> window_size_right) {
  constexpr const char* kOperation = "_flash_attention_backward";
  const std::optional<Tensor> of_queries = ifDefined(cum_seq_q);
  const std::optional<Tensor> of_keys = ifDefined(cum_seq_k);
  checkFlash(kOperation, query, key, value, of_queries, of_keys, dropout_p);
  TORCH_CHECK(grad_out.sizes() == query.sizes() && out.sizes() == query.sizes(), kOperation,
              ": expected grad_out and out of the sizes of the queries, ", query.sizes(), ", got ",
              grad_out.sizes(), " and ", out.sizes());
  checkSameDevice(kOperation, query.device(), {&grad_out, &out, &logsumexp});
  const c10::DeviceGuard guard(query.device());
  Tensor grad_query = emptyLike(query);
  Tensor grad_key = emptyLike(key);
  Tensor grad_value = emptyLike(value);
  enqueue<"aten::_flash_attention_backward">(
      query.device(), flashBackwardKernel, grad_out, query, key, value, out, logsumexp, of_queries,
      of_keys, windowOf(is_causal, window_size_left, window_size_right), scale, grad_query,
      grad_key, grad_value);
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value)};
}

// Registers a function if the operator has its parameters; newer releases of torch may have more.
// An operator that is skipped raises NotImplementedError.
template <typename Operator, auto kFunction>
void registerIfSame(torch::Library& library, const char* name) {
  if constexpr (std::is_same_v<typename Operator::schema,
                               std::remove_pointer_t<decltype(kFunction)>>) {
    library.impl(name, TORCH_FN(*kFunction));
  }
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
