#include "csrc/aten/attention/AttentionKernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "csrc/aten/cpu/ResultMemory.h"

namespace at::openreg {
namespace {

// Each head of the keys and values is used by the same number of heads of the queries.
Tensor repeatHeads(const Tensor& tensor, const Tensor& query) {
  const int64_t times = query.size(1) / tensor.size(1);
  return times == 1 ? tensor : tensor.repeat_interleave(times, 1);
}

// The gradient of a tensor whose heads were repeated.
Tensor sumOfHeads(const Tensor& grad, const Tensor& tensor) {
  const int64_t heads = tensor.size(1);
  return grad.size(1) == heads ? grad : grad.unflatten(1, {heads, -1}).sum(2);
}

// See Note [Bits of attention].
bool usesFlash(const Tensor& query, const Tensor& key, const Tensor& value,
               const std::optional<Tensor>& bias, const AttentionCall& call) {
  const bool has_strides_of_one =
      query.stride(-1) == 1 && key.stride(-1) == 1 && value.stride(-1) == 1;
  const bool has_usual_bias = !bias.has_value() || bias->dim() == 2 || bias->dim() == 4;
  return !call.hasDropout() && !call.has_bias_gradient && query.size(-1) == value.size(-1) &&
         has_strides_of_one && has_usual_bias;
}

// The composition, up to the probabilities, as torch computes it on the CPU.
struct Composition {
  Composition(const Tensor& query, const Tensor& key, const Tensor& value,
              const std::optional<Tensor>& bias, const AttentionCall& call);

  // All of the type in which the CPU computes; the queries and the keys have half the scale.
  double factor_of_query;
  double factor_of_key;
  Tensor scaled_query;
  Tensor scaled_key;
  Tensor value;
  Tensor scores;
  Tensor probabilities;
};

Tensor widened(const Tensor& tensor) { return tensor.to(toOpMathType(tensor.scalar_type())); }

Composition::Composition(const Tensor& query, const Tensor& key, const Tensor& value,
                         const std::optional<Tensor>& bias, const AttentionCall& call)
    : value(repeatHeads(widened(value), query)) {
  const double scale = call.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  factor_of_key = std::sqrt(std::abs(scale));
  factor_of_query = scale < 0 ? -factor_of_key : factor_of_key;
  scaled_query = widened(query) * factor_of_query;
  scaled_key = repeatHeads(widened(key), query) * factor_of_key;
  scores = at::matmul(scaled_query, scaled_key.transpose(-2, -1));
  if (call.is_causal) {
    const Tensor sees = at::ones({query.size(-2), key.size(-2)}, kBool).tril_();
    scores.masked_fill_(sees.logical_not_(), -kInfinity);
  }
  if (bias.has_value()) {
    scores.add_(*bias);
  }
  probabilities =
      bias.has_value() || call.is_causal ? at::_safe_softmax(scores, -1) : at::softmax(scores, -1);
}

// Lets a function of the CPU compute a result where it is to be.
void offer(ResultMemory& memory, const Tensor& result) {
  if (result.is_non_overlapping_and_dense()) {
    memory.offer(result.data_ptr(), result.nbytes());
  }
}

bool isInPlace(const Tensor& computed, const Tensor& result) {
  return computed.const_data_ptr() == result.const_data_ptr() &&
         computed.strides() == result.strides();
}

// Copies what was not computed in place. It may lie in the memory of another result.
template <size_t Size>
void place(std::array<Tensor, Size> computed, const std::array<Tensor, Size>& results) {
  for (size_t i = 0; i < Size; ++i) {
    if (!isInPlace(computed[i], results[i]) && ResultMemory::mayHold(computed[i])) {
      computed[i] = computed[i].clone();
    }
  }
  for (size_t i = 0; i < Size; ++i) {
    if (!isInPlace(computed[i], results[i])) {
      results[i].copy_(computed[i]);
    }
  }
}

}  // namespace

void drawSeedOfNoise(Generator engine, const Tensor& seed) {
  const std::lock_guard<std::mutex> lock(engine.mutex());
  const uint64_t number = engine.get<CPUGeneratorImpl>()->random64();
  seed.zero_();
  std::memcpy(seed.mutable_data_ptr(), &number, sizeof(number));
}

Noise::Noise(const std::optional<Tensor>& seed, double dropout_p) : dropout_p_(dropout_p) {
  if (dropout_p > 0) {
    uint64_t number = 0;
    std::memcpy(&number, seed->const_data_ptr(), sizeof(number));
    engine_ = at::detail::createCPUGenerator(number);
  }
}

Tensor Noise::next(IntArrayRef sizes, ScalarType type) {
  if (dropout_p_ == 1) {
    return at::zeros(sizes, type);
  }
  return at::empty(sizes, type).bernoulli_(1 - dropout_p_, engine_).div_(1 - dropout_p_);
}

void attend(const Tensor& query, const Tensor& key, const Tensor& value,
            const std::optional<Tensor>& bias, const AttentionCall& call, Noise& noise,
            const Tensor& output, const Tensor& logsumexp,
            const std::optional<Tensor>& debug_mask) {
  if (query.numel() == 0) {
    return;
  }
  if (key.numel() == 0) {
    output.zero_();
    logsumexp.fill_(kInfinity);
    return;
  }
  const bool has_sums = logsumexp.numel() > 0;
  if (usesFlash(query, key, value, bias, call)) {
    ResultMemory memory;
    offer(memory, output);
    if (has_sums) {
      offer(memory, logsumexp);
    }
    const auto [attended, sums] = at::cpu::_scaled_dot_product_flash_attention_for_cpu(
        query, repeatHeads(key, query), repeatHeads(value, query), /*dropout_p=*/0.0,
        call.is_causal, bias, call.scale);
    place<2>({attended, sums}, {output, has_sums ? logsumexp : sums});
    return;
  }
  const Composition parts(query, key, value, bias, call);
  if (has_sums) {
    logsumexp.copy_(at::logsumexp(parts.scores, -1));
  }
  Tensor weights = parts.probabilities;
  if (call.hasDropout()) {
    const Tensor mask = noise.next(weights.sizes(), weights.scalar_type());
    if (debug_mask.has_value()) {
      debug_mask->zero_();
      debug_mask->narrow(2, 0, weights.size(2))
          .narrow(3, 0, weights.size(3))
          .copy_(at::where(mask > 0, weights, -weights));
    }
    weights = weights * mask;
  }
  output.copy_(at::matmul(weights, parts.value));
}

void attendBackward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                    const Tensor& value, const std::optional<Tensor>& bias,
                    const AttentionCall& call, Noise& noise, const Tensor& output,
                    const Tensor& logsumexp, const Tensor& grad_query, const Tensor& grad_key,
                    const Tensor& grad_value, const std::optional<Tensor>& grad_bias) {
  if (query.numel() == 0 || key.numel() == 0) {
    for (const Tensor* one : {&grad_query, &grad_key, &grad_value}) {
      one->zero_();
    }
    if (grad_bias.has_value()) {
      grad_bias->zero_();
    }
    return;
  }
  if (usesFlash(query, key, value, bias, call)) {
    ResultMemory memory;
    for (const Tensor* one : {&grad_query, &grad_key, &grad_value}) {
      offer(memory, *one);
    }
    const auto [of_query, of_keys, of_values] =
        at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
            grad_output, query, repeatHeads(key, query), repeatHeads(value, query), output,
            logsumexp, /*dropout_p=*/0.0, call.is_causal, bias, call.scale);
    place<3>({of_query, sumOfHeads(of_keys, key), sumOfHeads(of_values, value)},
             {grad_query, grad_key, grad_value});
    return;
  }
  const Composition parts(query, key, value, bias, call);
  const Tensor grad = widened(grad_output);
  Tensor grad_weights = at::matmul(grad, parts.value.transpose(-2, -1));
  Tensor weights = parts.probabilities;
  if (call.hasDropout()) {
    const Tensor mask = noise.next(weights.sizes(), weights.scalar_type());
    weights = weights * mask;
    grad_weights = grad_weights * mask;
  }
  grad_value.copy_(sumOfHeads(at::matmul(weights.transpose(-2, -1), grad), value));
  const Tensor grad_scores =
      at::_softmax_backward_data(grad_weights, parts.probabilities, -1, grad_weights.scalar_type());
  grad_query.copy_(at::matmul(grad_scores, parts.scaled_key).mul_(parts.factor_of_query));
  const Tensor of_keys =
      at::matmul(parts.scaled_query.transpose(-2, -1), grad_scores).transpose(-2, -1) *
      parts.factor_of_key;
  grad_key.copy_(sumOfHeads(of_keys, key));
  if (grad_bias.has_value()) {
    grad_bias->copy_(at::sum_to(grad_scores, grad_bias->sizes()));
  }
}

namespace {

// The mask that implements a window.
struct WindowMask {
  bool is_causal = false;
  std::optional<Tensor> bias = std::nullopt;      // [queries, keys]; added to the scores
  std::optional<Tensor> is_blind = std::nullopt;  // [queries]; those that see no key
};

WindowMask maskOf(const Window& window, const Tensor& query, const Tensor& key) {
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

std::optional<Tensor> sumOf(const std::optional<Tensor>& bias, const std::optional<Tensor>& other) {
  return bias.has_value() && other.has_value() ? *bias + *other : bias.has_value() ? bias : other;
}

}  // namespace

void attendWithin(const Window& window, const Tensor& query, const Tensor& key, const Tensor& value,
                  const std::optional<Tensor>& bias, const AttentionCall& call, Noise& noise,
                  const Tensor& output, const Tensor& logsumexp,
                  const std::optional<Tensor>& debug_mask) {
  const WindowMask mask = maskOf(window, query, key);
  AttentionCall masked = call;
  masked.is_causal = call.is_causal || mask.is_causal;
  attend(query, key, value, sumOf(bias, mask.bias), masked, noise, output, logsumexp, debug_mask);
  if (mask.is_blind.has_value() && logsumexp.numel() > 0) {
    logsumexp.masked_fill_(*mask.is_blind, kInfinity);
  }
}

void attendWithinBackward(const Window& window, const Tensor& grad_output, const Tensor& query,
                          const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias,
                          const AttentionCall& call, Noise& noise, const Tensor& output,
                          const Tensor& logsumexp, const Tensor& grad_query, const Tensor& grad_key,
                          const Tensor& grad_value, const std::optional<Tensor>& grad_bias) {
  const WindowMask mask = maskOf(window, query, key);
  AttentionCall masked = call;
  masked.is_causal = call.is_causal || mask.is_causal;
  const Tensor sums =
      mask.is_blind.has_value() ? logsumexp.masked_fill(*mask.is_blind, 0) : logsumexp;
  attendBackward(grad_output, query, key, value, sumOf(bias, mask.bias), masked, noise, output,
                 sums, grad_query, grad_key, grad_value, grad_bias);
}

Sequences::Sequences(const char* operation, const Tensor& bounds, const Tensor& tensor) {
  const Tensor numbers = bounds.to(kLong).contiguous();
  bounds_.assign(numbers.const_data_ptr<int64_t>(),
                 numbers.const_data_ptr<int64_t>() + numbers.numel());
  int64_t last = 0;
  for (const int64_t bound : bounds_) {
    TORCH_CHECK(last <= bound && bound <= tensor.size(0), operation,
                ": expected sequence offsets that ascend from 0 to ", tensor.size(0), ", got ",
                bound, " after ", last);
    last = bound;
  }
}

}  // namespace at::openreg
