// Scaled dot product attention of CPU tensors, for kernels that workers run.
//
// Tensors of queries, keys, values and results have the dimensions [batch, heads, length, numbers],
// and any strides; log-sum-exps are [batch, heads, length]. The keys and the values may have fewer
// heads than the queries, each for as many heads of the queries. All results are written into
// tensors that the caller gives.
//
// Note [Bits of attention]
// Two algorithms compute attention, as on the CPU and with its bits: flash attention, and the
// composition of matrix products and a softmax. The CPU uses the latter with dropout, with a bias
// that needs a gradient and with values of another size than the keys; so do these functions.
//
// Note [Noise of attention]
// Dropout multiplies the probabilities by noise, which the backward pass needs again. The forward
// pass draws one number from the device's generator, which is the seed of the noise, and keeps it
// in a tensor; both passes compute the noise from it. So a call with dropout differs from the
// composition (torch.nn.attention.SDPBackend.MATH), which draws a number for each probability, as
// the CPU does.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "torch_openreg/aten/KernelArguments.h"

namespace at::openreg {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What a call computes, besides its tensors.
struct AttentionCall {
  double dropout_p = 0;
  bool is_causal = false;  // the first query sees the first key
  std::optional<double> scale = std::nullopt;
  bool has_bias_gradient = false;  // whether the bias needs one

  bool hasDropout() const { return dropout_p > 0; }
};

template <>
inline constexpr bool OwnsItsData<AttentionCall> = true;

// Writes the seed of the noise, a number from the engine, into the first 8 bytes of a tensor.
void drawSeedOfNoise(Generator engine, const Tensor& seed);

// The noise of one call: one tensor after the other, in the same order in both passes.
class Noise {
 public:
  // `seed` is a tensor of drawSeedOfNoise(); there is none without dropout.
  Noise(const std::optional<Tensor>& seed, double dropout_p);

  // Noise of a floating-point type: 0, or the reciprocal of the probability of being kept.
  Tensor next(IntArrayRef sizes, ScalarType type);

 private:
  double dropout_p_;
  Generator engine_;
};

// `logsumexp` has no elements if it is not needed. `debug_mask`, of
// [batch, heads, queries, keys] or larger, receives the probabilities before dropout, those that
// are dropped with a negative sign.
void attend(const Tensor& query, const Tensor& key, const Tensor& value,
            const std::optional<Tensor>& bias, const AttentionCall& call, Noise& noise,
            const Tensor& output, const Tensor& logsumexp,
            const std::optional<Tensor>& debug_mask = std::nullopt);

// The gradient of the bias is computed if it is given.
void attendBackward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                    const Tensor& value, const std::optional<Tensor>& bias,
                    const AttentionCall& call, Noise& noise, const Tensor& output,
                    const Tensor& logsumexp, const Tensor& grad_query, const Tensor& grad_key,
                    const Tensor& grad_value,
                    const std::optional<Tensor>& grad_bias = std::nullopt);

// How many keys a query sees before and after its own position; negative means all. The last query
// and the last key have the same position.
using Window = std::array<int64_t, 2>;
inline constexpr Window kWholeWindow{-1, -1};

// As attend() and attendBackward(), within a window. A query that sees no key has zeros and the
// log-sum-exp infinity.
void attendWithin(const Window& window, const Tensor& query, const Tensor& key, const Tensor& value,
                  const std::optional<Tensor>& bias, const AttentionCall& call, Noise& noise,
                  const Tensor& output, const Tensor& logsumexp,
                  const std::optional<Tensor>& debug_mask = std::nullopt);
void attendWithinBackward(const Window& window, const Tensor& grad_output, const Tensor& query,
                          const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias,
                          const AttentionCall& call, Noise& noise, const Tensor& output,
                          const Tensor& logsumexp, const Tensor& grad_query, const Tensor& grad_key,
                          const Tensor& grad_value,
                          const std::optional<Tensor>& grad_bias = std::nullopt);

// The parts of tensors in which sequences of different lengths follow each other in the first
// dimension, as [lengths, heads, numbers].
class Sequences {
 public:
  // `bounds` has the start of each sequence, and the end of the last one.
  // Errors: RuntimeError for bounds that do not ascend or are outside of `tensor`.
  Sequences(const char* operation, const Tensor& bounds, const Tensor& tensor);

  size_t size() const { return bounds_.size() - 1; }
  int64_t length(size_t number) const { return bounds_[number + 1] - bounds_[number]; }

  // As [1, heads, length, numbers].
  Tensor part(const Tensor& tensor, size_t number) const {
    return narrowed(tensor, 0, number).transpose(0, 1).unsqueeze(0);
  }

  // For tensors of [heads, lengths], as [1, heads, length].
  Tensor partOfSums(const Tensor& sums, size_t number) const {
    return narrowed(sums, 1, number).unsqueeze(0);
  }

 private:
  Tensor narrowed(const Tensor& tensor, int64_t dim, size_t number) const {
    return tensor.narrow(dim, bounds_[number], length(number));
  }

  std::vector<int64_t> bounds_;
};

}  // namespace at::openreg
