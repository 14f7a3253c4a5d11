// Kernels that compute in a wider type where the CPU lacks the dtype; see Note [Wider types].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "csrc/aten/dtypes/WiderTypes.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {
namespace detail {

inline bool hasDtypeIn(DtypeSet dtypes, const Tensor& tensor) {
  return (setOf(tensor.scalar_type()) & dtypes) != 0;
}
inline bool hasDtypeIn(DtypeSet dtypes, const std::optional<Tensor>& tensor) {
  return tensor.has_value() && hasDtypeIn(dtypes, *tensor);
}
inline bool hasDtypeIn(DtypeSet dtypes, const std::optional<ScalarType>& dtype) {
  return dtype.has_value() && (setOf(*dtype) & dtypes) != 0;
}
template <typename Other>
bool hasDtypeIn(DtypeSet /*dtypes*/, const Other& /*argument*/) {
  return false;
}

// Operators as template arguments: their names, and the dtypes that the table lists for them.

// "aten::add.out"
template <c10::openreg::KernelName Name>
struct OperatorOfName {
  static constexpr DtypeSet kDtypes = dtypesToWiden(Name.text).dense;

  static c10::OperatorHandle handle() { return operatorOfName(Name.text); }
};

// at::_ops::add_out
template <typename Op>
struct OperatorOfType {
  static constexpr DtypeSet kDtypes = dtypesToWiden(Op::name).dense;

  static c10::OperatorHandle handle() {
    return c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  }
};

// `kernel` with the signature of an operator that has an entry in the table.
template <typename Operator, auto Kernel, typename Function>
struct WideningKernel;

template <typename Operator, auto Kernel, typename Result, typename... Args>
struct WideningKernel<Operator, Kernel, Result (*)(Args...)> {
  static Result call(Args... args) {
    constexpr DtypeSet kPromoting = dtypesThatPromoteTo(Operator::kDtypes);
    if (C10_UNLIKELY((hasDtypeIn(kPromoting, args) || ...))) {
      static const c10::OperatorHandle op = Operator::handle();
      if (computesIn(Operator::kDtypes, op, c10::impl::boxArgs<Args...>(args...))) {
        return callWider(op, args...);
      }
    }
    return Kernel(std::forward<Args>(args)...);
  }

 private:
  static Result callWider(const c10::OperatorHandle& op, Args... args) {
    if constexpr (std::is_same_v<Result, const Tensor&>) {
      // torch's wrapper would treat it as an in-place operator and return the first argument.
      torch::jit::Stack stack = c10::impl::boxArgs<Args...>(args...);
      runWider(op, {}, &stack);
      return std::get<sizeof...(Args) - 1>(std::tie(args...));
    } else {
      return c10::impl::BoxedKernelWrapper<Result(Args...)>::call(
          c10::BoxedKernel::makeFromFunction<&runWider>(), op, {}, std::forward<Args>(args)...);
    }
  }
};

template <typename Operator, auto Kernel>
consteval auto wideningKernel() {
  if constexpr (Operator::kDtypes == 0) {
    return Kernel;
  } else {
    return &WideningKernel<Operator, Kernel, decltype(Kernel)>::call;
  }
}

}  // namespace detail

// The function to register for `Kernel` of an operator such as "aten::add.out": `Kernel` itself or,
// if the table has an entry for the operator, a function that checks the dtypes first.
template <c10::openreg::KernelName Name, auto Kernel>
consteval auto widening() {
  return detail::wideningKernel<detail::OperatorOfName<Name>, Kernel>();
}

// The same for an operator such as at::_ops::add_out.
template <typename Op, auto Kernel>
consteval auto wideningOf() {
  return detail::wideningKernel<detail::OperatorOfType<Op>, Kernel>();
}

}  // namespace at::openreg
