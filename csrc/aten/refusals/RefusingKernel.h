// Kernels that refuse what CUDA's kernel of the operator refuses; see Note [Refusals].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>

#include <type_traits>
#include <utility>

#include "csrc/aten/dtypes/WideningKernel.h"
#include "csrc/aten/refusals/Refusals.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {
namespace detail {

inline constexpr DtypeSet kInexactDtypes = c10::openreg::setOf(
    {ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double,
     ScalarType::ComplexHalf, ScalarType::ComplexFloat, ScalarType::ComplexDouble,
     ScalarType::Float8_e4m3fn, ScalarType::Float8_e4m3fnuz, ScalarType::Float8_e5m2,
     ScalarType::Float8_e5m2fnuz});

// `kernel` with the signature of an operator that has an entry.
template <c10::openreg::KernelName Name, auto Kernel, auto Shapes, typename Function>
struct RefusingKernel;

template <c10::openreg::KernelName Name, auto Kernel, auto Shapes, typename Result, typename First,
          typename... Others>
struct RefusingKernel<Name, Kernel, Shapes, Result (*)(First, Others...)> {
  static constexpr Refusals kRefusals = refusalsOf(Name.text);

  static Result call(First first, Others... others) {
    if (C10_UNLIKELY(mayRefuse(first, others...))) {
      static const c10::OperatorHandle op = OperatorOfName<Name>::handle();
      const torch::jit::Stack stack = c10::impl::boxArgs<First, Others...>(first, others...);
      if constexpr (std::is_null_pointer_v<decltype(Shapes)>) {
        refuse(kRefusals, op, stack);
      } else {
        refuse(kRefusals, op, stack, [&] { Shapes(first, others...); });
      }
    }
    return Kernel(std::forward<First>(first), std::forward<Others>(others)...);
  }

 private:
  // A part of the check, which few calls do not pass. The first argument has the kernel's dtype,
  // unless another has a wider one; integers after it may be indices.
  static bool mayRefuse(const Tensor& first, const Others&... others) {
    if constexpr (kRefusals.lacks_kernel || kRefusals.has_rule) {
      return true;
    }
    if constexpr (kRefusals.nondeterminism != nullptr) {
      if (isDeterminismAsked()) {
        return true;
      }
    }
    if constexpr (kRefusals.dtypes != nullptr) {
      constexpr DtypeSet kRefused = ~kRefusals.dtypes->dtypes;
      constexpr int kCapability = kRefusals.dtypes->capability;
      return hasDtypeIn(kRefused, first) ||
             (hasDtypeIn(kRefused & kInexactDtypes, others) || ...) ||
             (kCapability != 0 && isCapabilityBelow(kCapability));
    } else {
      return false;
    }
  }
};

}  // namespace detail

// The function to register for `Kernel` of an operator such as "aten::add.out": with device type
// cuda, one that refuses what CUDA refuses; see widening() for the rest. `Shapes` is the kernel
// without its launch: it makes the checks that CUDA makes before that of the dtype.
template <c10::openreg::KernelName Name, auto Kernel, auto Shapes = nullptr>
auto refusing() {
  if constexpr (refusalsOf(Name.text).areEmpty()) {
    return widening<Name, Kernel>();
  } else {
    using Refusing = detail::RefusingKernel<Name, Kernel, Shapes, decltype(Kernel)>;
    return c10::openreg::servesCuda() ? widening<Name, &Refusing::call>()
                                      : widening<Name, Kernel>();
  }
}

// For a kernel whose launch is a template argument: `Shapes` of refusing().
struct LaunchNothing {
  template <typename... Args>
  void operator()(const Args&... /*args*/) const {}
};

}  // namespace at::openreg
