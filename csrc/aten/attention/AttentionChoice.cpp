#include "csrc/aten/attention/AttentionChoice.h"

#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <c10/core/SymBool.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "csrc/aten/layouts/Components.h"
#include "csrc/core/DeviceForm.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/TorchRelease.h"

namespace at::openreg {
namespace {

using Params = sdp::sdp_params;
using Rule = bool (*)(const Params&, bool warns);
using Capability = std::tuple<int, int>;

const Capability& capability() {
  static const Capability capability = [] {
    const std::string_view text = c10::openreg::deviceForm().capability();
    const char* end = text.data() + text.size();
    int major = 0;
    int minor = 0;
    const char* point = std::from_chars(text.data(), end, major).ptr;
    if (point != end) {
      std::from_chars(point + 1, end, minor);
    }
    return Capability(major, minor);
  }();
  return capability;
}

bool isWithin(Capability first, Capability last) {
  return first <= capability() && capability() <= last;
}

bool isHalf(ScalarType type) { return type == kHalf || type == kBFloat16; }

// Rules. Each has the text with which CUDA rejects a call; torch has inline functions for those
// that the CPU shares.

bool isOnDevice(const Params& params, bool warns) {
  if (params.query.device().type() == c10::openreg::kDeviceType) {
    return true;
  }
  if (warns) {
    TORCH_WARN(
        "All tensors need to be on cuda device. Got query on device: ", params.query.device(),
        ", key on device: ", params.key.device(), ", value on device: ", params.value.device());
  }
  return false;
}

bool hasFlashHeadSize(const Params& params, bool warns) {
  const c10::SymInt size = params.query.sym_size(-1);
  if (size == params.key.sym_size(-1) && size == params.value.sym_size(-1) && size <= 256) {
    return true;
  }
  if (warns) {
    TORCH_WARN(
        "Flash attention requires q,k,v to have the same last dimension and to be less than or "
        "equal to 256. Got Query.size(-1): ",
        size, ", Key.size(-1): ", params.key.sym_size(-1),
        ", Value.size(-1): ", params.value.sym_size(-1), " instead.");
  }
  return false;
}

bool hasEfficientHeadSize(const Params& params, bool warns) {
  const int64_t alignment = alignmentOfEfficientAttention(params.query.scalar_type());
  const c10::SymInt size = params.query.sym_size(-1);
  const c10::SymInt value_size = params.value.sym_size(-1);
  if (size == params.key.sym_size(-1) && size > 0 && size % alignment == 0 && value_size > 0 &&
      value_size % alignment == 0) {
    return true;
  }
  if (warns) {
    TORCH_WARN("Mem efficient attention requires last dimension of inputs to be divisible by ",
               alignment, ". Got Query.size(-1): ", size,
               ", Key.size(-1): ", params.key.sym_size(-1), ", Value.size(-1): ", value_size,
               " instead.");
  }
  return false;
}

// Warns that an algorithm exists for other capabilities only.
bool hasCapabilityFor(const char* algorithm, Capability first, const char* name, bool warns) {
  if (isWithin(first, {12, 1})) {
    return true;
  }
  if (warns) {
    TORCH_WARN(algorithm, " only supports gpu architectures in the range [", name,
               ", sm121]. Attempting to run on a sm ", std::get<0>(capability()), ".",
               std::get<1>(capability()), " gpu.");
  }
  return false;
}

bool hasFlashCapability(const Params& /*params*/, bool warns) {
  return hasCapabilityFor("Flash attention", {8, 0}, "sm80", warns);
}

bool hasEfficientCapability(const Params& /*params*/, bool warns) {
  return hasCapabilityFor("Mem Efficient Attention", {5, 0}, "sm50", warns);
}

bool hasCudnnCapability(const Params& /*params*/, bool warns) {
  return hasCapabilityFor("cuDNN MHA", {8, 0}, "sm80", warns);
}

// On some capabilities, large heads have no gradient.
bool hasFlashGradient(const Params& params, bool warns) {
  const bool is_limited = isWithin({8, 6}, {8, 9}) || isWithin({12, 0}, {12, 1});
  const c10::SymInt size = params.query.sym_size(-1);
  if (!is_limited || !sdp::input_requires_grad(params) || size <= 192 ||
      (params.dropout <= 0 && size > 224)) {
    return true;
  }
  if (warns) {
    TORCH_WARN(
        "Flash attention currently doesn't support training with head_dim ∈ (192, 224] or "
        "(head_dim ∈ (224, 256] and dropout > 0.0) on gpu architectures in the range[sm86, "
        "sm89].",
        "Attempting to run with dropout set to: ", params.dropout, "and head_dim: ", size,
        " on a sm ", std::get<0>(capability()), ".", std::get<1>(capability()), " gpu.");
  }
  return false;
}

bool hasFlashCausality(const Params& params, bool warns) {
  if (!params.is_causal || params.query.is_nested() || params.key.is_nested() ||
      TORCH_GUARD_OR_FALSE(params.query.sym_size(-2).sym_eq(params.key.sym_size(-2)))) {
    return true;
  }
  if (warns) {
    TORCH_WARN(
        "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. Got "
        "seqlen_q: ",
        params.query.sym_size(-2), " seqlen_k: ", params.key.sym_size(-2),
        ". If you would like to use causal attention with non-square masks, please see "
        "CausalAttnMask.");
  }
  return false;
}

bool hasHalfDtype(const Params& params, bool warns) {
  return hasCapability(8, 0) ? sdp::check_tensor_dtype(params, std::array{kHalf, kBFloat16}, warns)
                             : sdp::check_tensor_dtype(params, std::array{kHalf}, warns);
}

bool hasEfficientDtype(const Params& params, bool warns) {
  return hasCapability(8, 0)
             ? sdp::check_tensor_dtype(params, std::array{kHalf, kFloat, kBFloat16}, warns)
             : sdp::check_tensor_dtype(params, std::array{kHalf, kFloat}, warns);
}

bool isCudnnEnabled(const Params& /*params*/, bool warns) {
  const bool is_enabled = at::globalContext().userEnabledCuDNNSDP();
  if (!is_enabled && warns) {
    TORCH_WARN("cuDNN attention has been runtime disabled.");
  }
  return is_enabled;
}

// The one rule that CUDA does not have: nested tensors of the layout strided are composed here.
bool isNotNested(const Params& params, bool warns) {
  const bool is_nested = sdp::has_for_nested_inputs(params);
  if (is_nested && warns) {
    TORCH_WARN(
        "Fused attention has no kernel for nested tensors of the layout torch.strided on an "
        "emulated device; use the layout torch.jagged.");
  }
  return !is_nested;
}

bool mayVary(const Params& /*params*/, bool warns) {
  const Context& context = at::globalContext();
  const bool must_be_deterministic =
      context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
  if (must_be_deterministic && warns) {
    TORCH_WARN("cuDNN SDPA is not deterministic.");
  }
  return !must_be_deterministic;
}

bool hasCudnnDropout(const Params& params, bool warns) {
  const double sixteenths = params.dropout * 16;
  const bool is_representable = sixteenths == std::floor(sixteenths);
  if (!is_representable && warns) {
    TORCH_WARN(
        "cuDNN dropout probability resolution is limited to 1/16.Use a dropout probability that "
        "is a multiple of 1/16 to select the cuDNN backend");
  }
  return is_representable;
}

bool hasCudnnSizes(const Params& params, bool warns) {
  const c10::SymInt size = params.query.sym_size(3);
  const c10::SymInt value_size = params.value.sym_size(3);
  const auto [major, minor] = capability();
  const bool is_hopper_or_later = (major == 9 && minor == 0) || major == 10;
  const int limit = is_hopper_or_later && size == 192 && value_size == 128 ? 192 : 128;
  if (size > limit || value_size > limit) {
    if (warns) {
      TORCH_WARN("head_dim should be no more than ", limit);
    }
    return false;
  }
  if (size % 8 != 0 || value_size % 8 != 0) {
    if (warns) {
      TORCH_WARN("head_dim should be a multiple of 8");
    }
    return false;
  }
  if (params.key.sym_size(2) == 1) {
    if (warns) {
      TORCH_WARN_ONCE("cudnn SDPA does not support key/value sequence length 1.");
    }
    return false;
  }
  if (params.dropout != 0 && params.query.sym_size(2) == 1) {
    if (warns) {
      TORCH_WARN_ONCE("cudnn SDPA does not support query sequence length 1 with dropout.");
    }
    return false;
  }
  return true;
}

template <size_t Size>
bool hold(const std::array<Rule, Size>& rules, const Params& params, bool warns) {
  return std::all_of(rules.begin(), rules.end(), [&](Rule holds) { return holds(params, warns); });
}

#if OPENREG_TORCH_HAS_SHARED_HEADS_IN_ATTENTION
constexpr Rule kHasFlashHeads = sdp::check_batch_size_and_num_heads_dense<true, true, true>;
constexpr Rule kHasCudnnHeads = sdp::check_batch_size_and_num_heads_dense<true, false, true>;
constexpr Rule kHasEfficientHeads = sdp::check_batch_size_and_num_heads_dense<true, true, true>;
#else
constexpr Rule kHasFlashHeads = sdp::check_batch_size_and_num_heads_dense<true>;
constexpr Rule kHasCudnnHeads = sdp::check_batch_size_and_num_heads_dense<true, false>;
constexpr Rule kHasEfficientHeads = sdp::check_batch_size_and_num_heads_dense<false>;
#endif

constexpr Rule kHasStridesOfOne = sdp::check_last_dim_stride_equals_1_dense<false>;
constexpr Rule kHasStridesOfOneOrSizesOfOne = sdp::check_last_dim_stride_equals_1_dense<true>;

// Tensors of the layout jagged have the rest of their rules in torch.nested.
bool canUseFlash(const Params& params, bool warns) {
  constexpr std::array<Rule, 10> kRules{sdp::check_runtime_disabled_flash,
                                        isNotNested,
                                        isOnDevice,
                                        sdp::check_tensor_shapes,
                                        sdp::check_for_attn_mask,
                                        hasFlashHeadSize,
                                        hasFlashCapability,
                                        hasFlashGradient,
                                        hasFlashCausality,
                                        hasHalfDtype};
  constexpr std::array<Rule, 3> kOfDense{kHasFlashHeads, sdp::check_nonzero_sequence_lengths_dense,
                                         kHasStridesOfOneOrSizesOfOne};
  return hold(kRules, params, warns) &&
         (!sdp::has_only_dense_inputs(params) || hold(kOfDense, params, warns));
}

bool canUseEfficient(const Params& params, bool warns) {
  constexpr std::array<Rule, 6> kRules{sdp::check_runtime_disabled_mem_efficient,
                                       isNotNested,
                                       isOnDevice,
                                       hasEfficientCapability,
                                       sdp::check_tensor_shapes,
                                       hasEfficientHeadSize};
  constexpr std::array<Rule, 3> kOfDense{sdp::check_nonzero_sequence_lengths_dense,
                                         kHasStridesOfOne, kHasEfficientHeads};
  return hold(kRules, params, warns) &&
         (!sdp::has_only_dense_inputs(params) || hold(kOfDense, params, warns)) &&
         hasEfficientDtype(params, warns);
}

bool canUseCudnn(const Params& params, bool warns) {
  constexpr std::array<Rule, 9> kRules{isCudnnEnabled,
                                       isNotNested,
                                       isOnDevice,
                                       sdp::check_tensor_shapes,
                                       mayVary,
                                       hasHalfDtype,
                                       sdp::check_attn_mask_shape,
                                       hasCudnnCapability,
                                       hasCudnnDropout};
  constexpr std::array<Rule, 4> kOfDense{sdp::check_nonzero_sequence_lengths_dense,
                                         kHasStridesOfOneOrSizesOfOne, kHasCudnnHeads,
                                         hasCudnnSizes};
  return hold(kRules, params, warns) &&
         (!sdp::has_only_dense_inputs(params) || hold(kOfDense, params, warns));
}

// Capabilities 9 and 10 prefer cuDNN, unless the program has given an order.
void preferCudnn() {
  using Order = std::vector<int64_t>;
  const auto number = [](SDPBackend one) { return static_cast<int64_t>(one); };
  Context& context = at::globalContext();
  const auto given = context.sDPPriorityOrder();
  const std::array usual{SDPBackend::flash_attention, SDPBackend::efficient_attention,
                         SDPBackend::math, SDPBackend::cudnn_attention};
  const int major = std::get<0>(capability());
  if ((major == 9 || major == 10) && std::equal(usual.begin(), usual.end(), given.begin())) {
    context.setSDPPriorityOrder(
        Order{number(SDPBackend::cudnn_attention), number(SDPBackend::flash_attention),
              number(SDPBackend::efficient_attention), number(SDPBackend::math)});
  }
}

SDPBackend chooseAsCuda(const Params& params) {
  const Context& context = at::globalContext();
  TORCH_CHECK(context.userEnabledMathSDP() || context.userEnabledFlashSDP() ||
                  context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP(),
              "No viable backend for scaled_dot_product_attention was found. This is likely due to "
              "turning off both the math kernel and the fused kernels.");
  [[maybe_unused]] static const bool is_preferred = (preferCudnn(), true);
  constexpr bool kWarns = true;
  for (const SDPBackend one : at::globalContext().sDPPriorityOrder()) {
    if (one == SDPBackend::math ? context.userEnabledMathSDP()
                                : canUseAttention(one, params, !kWarns)) {
      return one;
    }
  }
  TORCH_WARN("Memory efficient kernel not used because:");
  canUseEfficient(params, kWarns);
  TORCH_WARN("Flash attention kernel not used because:");
  canUseFlash(params, kWarns);
  TORCH_WARN("cuDNN attention kernel not used because:");
  canUseCudnn(params, kWarns);
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

// A CPU tensor without memory that has the metadata that the CPU's selection depends on. Under a
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
  return !context.userEnabledMathSDP() &&
         (context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP() ||
          context.userEnabledCuDNNSDP() || context.userEnabledOverrideableSDP());
}

// The requirements of the fused algorithm, of which dropout and the gradient of the bias are no
// part.
bool canBeFused(const Params& params) {
  constexpr bool kWarns = false;
  constexpr std::array<Rule, 6> kRules{
      sdp::check_nested_tensor,
      sdp::check_tensor_shapes,
      sdp::check_batch_size_and_num_heads_dense</*supports_gqa=*/true>,
      sdp::check_attn_mask_shape,
      sdp::check_nonzero_sequence_lengths_dense,
      kHasStridesOfOne};
  return hold(kRules, params, kWarns) && params.query.sym_size(-1) == params.value.sym_size(-1) &&
         params.query.sym_size(-1) == params.key.sym_size(-1);
}

SDPBackend chooseAsCpu(const Params& given, std::optional<double> scale) {
  Params params = given;
  for (Tensor* one : {&params.query, &params.key, &params.value}) {
    *one = dummyOf(*one);
  }
  if (params.attn_mask.has_value()) {
    params.attn_mask = dummyOf(*params.attn_mask);
  }
  if (isFusedOnly()) {
    Params without_gradient = params;
    if (params.attn_mask.has_value() && !params.attn_mask->is_same(*given.attn_mask)) {
      without_gradient.attn_mask = dummyOf(*given.attn_mask).set_requires_grad(false);
    }
    if (canBeFused(without_gradient)) {
      return SDPBackend::overrideable;
    }
  }
  const auto choice = static_cast<SDPBackend>(at::native::_fused_sdp_choice_cpp(
      params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal,
      scale, params.enable_gqa));
  return choice == SDPBackend::flash_attention ? SDPBackend::overrideable : choice;
}

int64_t chooseAlgorithm(const Tensor& query, const Tensor& key, const Tensor& value,
                        const std::optional<Tensor>& attn_mask, double dropout_p, bool is_causal,
                        std::optional<double> scale, bool enable_gqa) {
  Params params{query, key, value, attn_mask, dropout_p, is_causal, enable_gqa};
  if (!c10::openreg::servesCuda()) {
    return static_cast<int64_t>(chooseAsCpu(params, scale));
  }
#if OPENREG_TORCH_HAS_SHARED_HEADS_IN_ATTENTION
  params = sdp::normalize_unbatched_input(std::move(params));
#endif
  return static_cast<int64_t>(chooseAsCuda(params));
}

}  // namespace

bool hasCapability(int major, int minor) { return Capability(major, minor) <= capability(); }

int64_t alignmentOfEfficientAttention(ScalarType type) {
  if (hasCapability(8, 0)) {
    return isHalf(type) ? 8 : 4;
  }
  return hasCapability(7, 0) && isHalf(type) ? 8 : 1;
}

bool canUseAttention(SDPBackend algorithm, const Params& params, bool warns) {
  switch (algorithm) {
    case SDPBackend::flash_attention:
      return canUseFlash(params, warns);
    case SDPBackend::efficient_attention:
      return canUseEfficient(params, warns);
    case SDPBackend::cudnn_attention:
      return canUseCudnn(params, warns);
    default:
      return false;
  }
}

OPENREG_LIBRARY_IMPL(aten, Dense, m) { m.impl("_fused_sdp_choice", TORCH_FN(chooseAlgorithm)); }

}  // namespace at::openreg

namespace at::native {

OPENREG_REGISTER_DISPATCH(_fused_sdp_choice_stub, &at::openreg::chooseAlgorithm)

}  // namespace at::native
