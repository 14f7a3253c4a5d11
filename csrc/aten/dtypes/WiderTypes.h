// Dtypes that CUDA supports for an operator and the CPU does not.
//
// Note [Wider types]
// Programs written for CUDA use dtypes for which the CPU has no kernel, such as complex32 in
// Fourier transforms. Such a call is computed in the next wider type that the CPU supports, and
// each result is rounded once, to the dtype of the call:
//
//   complex32           complex64
//   float16, bfloat16   float32
//   bool                uint8
//
// The tensors are converted, the operator is called again with the wider ones, and its results are
// converted back, all by operators of this device. So the call is as asynchronous as the wider
// call: it waits in its first run only if that does, and a graph can capture it.
//
// The table below is the only list of operators with such dtypes. Generated and composite operators
// look it up at compile time (WideningKernel.h), the fallback once per operator; calls of an
// operator without an entry look up nothing. A dtype that CUDA does not support either raises the
// CPU's error. test/aten/test_dtypes.py compares the table with torch's OpInfos for CUDA and with
// what the CPU's kernels refuse.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// A bit for each dtype.
using DtypeSet = uint64_t;

constexpr DtypeSet setOf(ScalarType dtype) { return DtypeSet(1) << static_cast<int>(dtype); }

namespace detail {

struct DtypesToWiden {
  std::string_view name;  // of all overloads, including the in-place one
  DtypeSet dtypes;
  DispatchKey layout = DispatchKey::Dense;
};

inline constexpr DtypeSet kBools = setOf(ScalarType::Bool);
inline constexpr DtypeSet kHalves = setOf(ScalarType::Half);
inline constexpr DtypeSet kShortFloats = kHalves | setOf(ScalarType::BFloat16);
inline constexpr DtypeSet kComplexHalves = setOf(ScalarType::ComplexHalf);

inline constexpr DtypesToWiden kDtypesToWiden[] = {
    {"_fft_c2c", kComplexHalves},
    {"_fft_c2r", kComplexHalves},
    {"_fft_r2c", kHalves},
    {"_upsample_bilinear2d_aa", kShortFloats},
    {"_upsample_bilinear2d_aa_backward", kShortFloats},
    {"abs", kBools},
    {"acos", kComplexHalves},
    {"acosh", kComplexHalves},
    {"add", kHalves, DispatchKey::Sparse},
    {"addmm", kShortFloats, DispatchKey::SparseCsr},
    {"angle", kComplexHalves},
    {"asin", kComplexHalves},
    {"asinh", kComplexHalves},
    {"atan", kComplexHalves},
    {"atanh", kComplexHalves},
    {"avg_pool3d", kShortFloats},
    {"avg_pool3d_backward", kShortFloats},
    {"cos", kComplexHalves},
    {"cosh", kComplexHalves},
    {"cumprod", kComplexHalves},  // in the gradient of prod
    {"div", kComplexHalves},
    {"exp", kComplexHalves},
    {"fft_fft", kComplexHalves | kHalves},
    {"fft_fft2", kComplexHalves | kHalves},
    {"fft_fftn", kComplexHalves | kHalves},
    {"fft_hfft", kComplexHalves | kHalves},
    {"fft_hfft2", kComplexHalves | kHalves},
    {"fft_hfftn", kComplexHalves | kHalves},
    {"fft_ifft", kComplexHalves | kHalves},
    {"fft_ifft2", kComplexHalves | kHalves},
    {"fft_ifftn", kComplexHalves | kHalves},
    {"fft_ihfft", kHalves},
    {"fft_ihfft2", kHalves},
    {"fft_ihfftn", kHalves},
    {"fft_irfft", kComplexHalves | kHalves},
    {"fft_irfft2", kComplexHalves | kHalves},
    {"fft_irfftn", kComplexHalves | kHalves},
    {"fft_rfft", kHalves},
    {"fft_rfft2", kHalves},
    {"fft_rfftn", kHalves},
    {"flip", kComplexHalves},  // in the gradient of prod
    {"lerp", kComplexHalves},
    {"log", kComplexHalves},
    {"logaddexp", kComplexHalves},
    {"mm", kShortFloats, DispatchKey::SparseCsr},
    {"multi_margin_loss", kShortFloats},
    {"multi_margin_loss_backward", kShortFloats},
    {"multilabel_margin_loss_backward", kShortFloats},
    {"multilabel_margin_loss_forward", kShortFloats},
    {"nansum", kComplexHalves},
    {"pow", kComplexHalves},
    {"prod", kComplexHalves},
    {"rrelu_with_noise", kHalves},
    {"rsqrt", kComplexHalves},
    {"sigmoid", kComplexHalves},
    {"sigmoid_backward", kComplexHalves},
    {"sin", kComplexHalves},
    {"sinh", kComplexHalves},
    {"sqrt", kComplexHalves},
    {"sub", kHalves, DispatchKey::Sparse},
    {"sum", kComplexHalves},
    {"tan", kComplexHalves},
    {"tanh", kComplexHalves},
    {"tanh_backward", kComplexHalves},
    {"trace", kBools | kComplexHalves},
};

// "add" of "aten::add_.Tensor".
constexpr std::string_view baseNameOf(std::string_view name) {
  constexpr std::string_view kNamespace = "aten::";
  if (name.starts_with(kNamespace)) {
    name.remove_prefix(kNamespace.size());
  }
  name = name.substr(0, name.find('.'));
  if (name.ends_with('_')) {
    name.remove_suffix(1);
  }
  return name;
}

}  // namespace detail

// The dtypes of calls of the operator, on tensors of this layout, that are computed in a wider
// dtype. `name` may have the namespace and the overload.
constexpr DtypeSet dtypesToWiden(std::string_view name, DispatchKey layout) {
  const std::string_view base_name = detail::baseNameOf(name);
  DtypeSet dtypes = 0;
  for (const detail::DtypesToWiden& entry : detail::kDtypesToWiden) {
    if (entry.name == base_name && entry.layout == layout) {
      dtypes |= entry.dtypes;
    }
  }
  return dtypes;
}

// The dtypes of tensors that can make a call compute in one of `dtypes`: with a complex number,
// float16 becomes complex32.
constexpr DtypeSet dtypesThatPromoteTo(DtypeSet dtypes) {
  return (dtypes & detail::kComplexHalves) != 0 ? dtypes | detail::kHalves : dtypes;
}

// Whether the call, whose arguments are the last on the stack, computes in one of `dtypes`: the
// dtype argument, or the dtype that its inputs are promoted to.
OPENREG_EXPORT bool computesIn(DtypeSet dtypes, const c10::OperatorHandle& op,
                               const torch::jit::Stack& stack);

// Runs a call in the wider dtype.
// Errors: those of the wider call. Also throws, as CUDA's kernels do, if a tensor to be written
// overlaps itself or another argument.
OPENREG_EXPORT void runWider(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack);

}  // namespace at::openreg
