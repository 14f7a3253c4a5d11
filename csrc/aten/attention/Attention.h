// What operators of attention have in common on the calling thread.
//
// Note [Attention's operators]
// torch has three families: the one that a device outside of torch's tree implements
// (..._fused_attention_overrideable), which the device type openreg uses; CUDA's for whole tensors
// (..._flash_attention, ..._efficient_attention, ..._cudnn_attention); and CUDA's for packed
// sequences (_flash_attention_forward, _efficient_attention_forward, _cudnn_attention_forward). All
// run the functions of AttentionKernels.h. They differ in the sizes, strides and dtypes of their
// results, which are those of torch's functions for meta tensors, and in what they reject: with the
// device type CUDA, what CUDA rejects.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <type_traits>

#include "csrc/aten/attention/AttentionKernels.h"

namespace at::openreg {

// The results that hold the random state of a call. The kernels of this device use the seed alone.
struct RandomState {
  Tensor seed;
  Tensor offset;
};

// As of flash attention, uint64 of [2] and []; as of the others, int64 of [] and []. With dropout,
// a kernel draws the seed. They are on the device also where CUDA has them on the host, since
// kernels draw.
RandomState drawRandomState(c10::Device device, const AttentionCall& call, bool is_flash);

// Throws what CUDA throws for tensors of [..., length, heads, numbers].
void checkFlashAsCuda(const Tensor& query, const Tensor& key, const Tensor& value);
void checkEfficientAsCuda(const Tensor& query, const Tensor& key, const Tensor& value,
                          const std::optional<Tensor>& bias);

// Warns once if deterministic algorithms are wanted, but not required.
void warnOfOrder(const char* algorithm);

// The probabilities that flash attention returns for tests, of lengths that are multiples of 128.
// Errors: RuntimeError without dropout, as CUDA.
Tensor emptyDebugMask(int64_t batch, int64_t heads, int64_t queries, int64_t keys, double dropout_p,
                      ScalarType type);

// The gradient of a bias, whose rows begin at multiples of 16 elements.
Tensor emptyGradientOfBias(const Tensor& bias);

// Operators whose arguments are not optional represent missing tensors by undefined ones.
std::optional<Tensor> ifDefined(const Tensor& tensor);
std::optional<Tensor> ifDefined(const std::optional<Tensor>& tensor);

// The length of memory-efficient attention's log-sum-exps.
int64_t paddedLength(int64_t queries);

// The seed for a kernel, none without dropout.
std::optional<Tensor> seedOf(const Tensor& seed, double dropout_p);

// Registers a function if the operator has its parameters; newer releases of torch may have more.
// An operator that is skipped raises NotImplementedError.
template <typename Operator, auto kFunction>
void registerIfSame(torch::Library& library, const char* name) {
  if constexpr (std::is_same_v<typename Operator::schema,
                               std::remove_pointer_t<decltype(kFunction)>>) {
    library.impl(name, TORCH_FN(*kFunction));
  }
}

}  // namespace at::openreg
