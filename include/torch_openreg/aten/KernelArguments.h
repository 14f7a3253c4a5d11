// Passes the arguments of a CPU function to a worker.
//
// enqueue<"aten::name">(device, function, arguments...) calls `function` on the current stream of
// `device`. The worker passes each argument as follows:
//   Tensor, optional<Tensor>, TensorList,     CPU tensors on the same memory (TensorAlias)
//     ITensorListRef, List<optional<Tensor>>
//   optional<Generator>                       the engine of the device's generator, in launch order
//   ArrayRef, string_view, and optional ones  the same, of a copy that the closure owns
//   a value that owns its data (OwnsItsData)  a copy
//   any other type: a pointer, another view   does not compile
// Tensors that the host creates for the kernel, such as staged data, are passed as StagedTensor.
//
// Observers (Observer.h) see a tensor as written if the parameter for it is a non-const reference,
// such as Tensor&, and otherwise as read. They see nothing of functions that are overloaded or
// generic.
//
// Threads, GIL, capture, ownership and errors of a launch are those of Launch.h. In addition,
// arguments are copied before the call returns and may then change or be destroyed, except for the
// memory of tensors (Note [Lifetimes of enqueued work] in TensorAlias.h). An argument that cannot
// be copied throws at the call. In a graph, every replay uses the captured arguments.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/core/Generator.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/OptionalArrayRef.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {

// A CPU tensor that the closure owns, passed to the kernel unchanged.
struct StagedTensor {
  Tensor tensor;
};

// A CPU tensor that the caller must keep alive and unchanged until the kernel has run.
struct HostTensor {
  const Tensor& tensor;
};

// Whether a copy of a T refers only to data that it owns or whose ownership it shares, so that the
// worker may read it at any time. Specialize it for such a type.
template <typename T>
inline constexpr bool OwnsItsData = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <>
inline constexpr bool OwnsItsData<c10::Scalar> = true;
template <>
inline constexpr bool OwnsItsData<c10::Device> = true;
template <>
inline constexpr bool OwnsItsData<std::nullopt_t> = true;
template <>
inline constexpr bool OwnsItsData<std::string> = true;
template <typename T>
inline constexpr bool OwnsItsData<std::optional<T>> = OwnsItsData<T>;
template <typename T, size_t Size>
inline constexpr bool OwnsItsData<std::array<T, Size>> = OwnsItsData<T>;
template <typename T>
inline constexpr bool OwnsItsData<std::vector<T>> = OwnsItsData<T>;

namespace detail {

template <typename T>
struct Owned {
  static_assert(
      OwnsItsData<T>,
      "a kernel's argument: expected a tensor, a list of tensors or a value that owns its "
      "data, as the worker reads it after the call has returned; pass a copy that owns "
      "what a view or pointer refers to, or specialize at::openreg::OwnsItsData");
  using Vector = std::vector<T>;
};
// Sizes, of which there are few.
template <>
struct Owned<int64_t> {
  using Vector = DimVector;
};

// hold() runs on the calling thread, release() on the worker.
template <typename T>
struct Argument : Owned<T> {
  static T hold(const T& value, c10::Device /*device*/) { return value; }
  static const T& release(const T& held) { return held; }
};

template <>
struct Argument<Tensor> {
  static TensorAlias hold(const Tensor& tensor, c10::Device /*device*/) {
    return TensorAlias(tensor);
  }
  static Tensor release(const TensorAlias& held) { return held.tensor(); }
};

template <>
struct Argument<std::optional<Tensor>> {
  static TensorAlias hold(const std::optional<Tensor>& tensor, c10::Device /*device*/) {
    return TensorAlias(tensor);
  }
  static std::optional<Tensor> release(const TensorAlias& held) { return held.optionalTensor(); }
};

struct TensorListArgument {
  static std::vector<TensorAlias> hold(const ITensorListRef& tensors, c10::Device /*device*/) {
    return aliasAll(tensors);
  }
  static std::vector<Tensor> release(const std::vector<TensorAlias>& held) {
    return tensorsOf(held);
  }
};

template <>
struct Argument<TensorList> : TensorListArgument {};
template <>
struct Argument<ITensorListRef> : TensorListArgument {};

template <>
struct Argument<c10::List<std::optional<Tensor>>> {
  static std::vector<TensorAlias> hold(const c10::List<std::optional<Tensor>>& tensors,
                                       c10::Device /*device*/) {
    return aliasAll(tensors);
  }
  static c10::List<std::optional<Tensor>> release(const std::vector<TensorAlias>& held) {
    return optionalTensorsOf(held);
  }
};

template <>
struct Argument<StagedTensor> {
  static Tensor hold(const StagedTensor& staged, c10::Device /*device*/) { return staged.tensor; }
  static Tensor release(const Tensor& held) { return held; }
};

template <>
struct Argument<HostTensor> {
  static TensorAlias hold(const HostTensor& host, c10::Device /*device*/) {
    return TensorAlias::ofHostMemory(host.tensor);
  }
  static Tensor release(const TensorAlias& held) { return held.tensor(); }
};

// A view, stored as an owner of its data.
template <typename View, typename Owner>
struct ViewArgument {
  static Owner hold(const View& view, c10::Device /*device*/) {
    return Owner(view.begin(), view.end());
  }
  static const Owner& release(const Owner& held) { return held; }
};

template <typename OptionalView, typename View, typename Owner>
struct OptionalViewArgument {
  static std::optional<Owner> hold(const OptionalView& view, c10::Device /*device*/) {
    return view.has_value() ? std::optional<Owner>(std::in_place, view->begin(), view->end())
                            : std::nullopt;
  }
  static OptionalView release(const std::optional<Owner>& held) {
    return held.has_value() ? OptionalView(View(*held)) : OptionalView();
  }
};

template <typename T>
using VectorOf = typename Owned<T>::Vector;

template <typename T>
struct Argument<c10::ArrayRef<T>> : ViewArgument<c10::ArrayRef<T>, VectorOf<T>> {};
template <typename T>
struct Argument<c10::OptionalArrayRef<T>>
    : OptionalViewArgument<c10::OptionalArrayRef<T>, c10::ArrayRef<T>, VectorOf<T>> {};
template <typename T>
struct Argument<std::optional<c10::ArrayRef<T>>>
    : OptionalViewArgument<std::optional<c10::ArrayRef<T>>, c10::ArrayRef<T>, VectorOf<T>> {};
template <>
struct Argument<std::string_view> : ViewArgument<std::string_view, std::string> {};
template <>
struct Argument<std::optional<std::string_view>>
    : OptionalViewArgument<std::optional<std::string_view>, std::string_view, std::string> {};

template <>
struct Argument<std::optional<Generator>> {
  static Generator hold(const std::optional<Generator>& generator, c10::Device device) {
    return engineForLaunch(generator, device.index());
  }
  static std::optional<Generator> release(const Generator& held) { return held; }
};

}  // namespace detail

// The call of `function` as a closure, with the arguments converted as described above.
template <typename Function, typename... Args>
auto bindArguments(c10::Device device, Function function, const Args&... args) {
  return [function, held = std::make_tuple(detail::Argument<Args>::hold(args, device)...)] {
    std::apply(
        [&](const auto&... one) {
          auto released = std::tuple(detail::Argument<Args>::release(one)...);
          std::apply([&](auto&... values) { function(values...); }, released);
        },
        held);
  };
}

namespace detail {

// The types of a function's parameters, as a tuple; void if they cannot be determined.
template <typename Function>
struct ParametersOf {
  using Types = void;
};
template <typename Result, typename... Types_>
struct ParametersOf<Result (*)(Types_...)> {
  using Types = std::tuple<Types_...>;
};
template <typename Class, typename Result, typename... Types_>
struct ParametersOf<Result (Class::*)(Types_...) const> {
  using Types = std::tuple<Types_...>;
};
template <typename Function>
  requires requires { &Function::operator(); }
struct ParametersOf<Function> : ParametersOf<decltype(&Function::operator())> {};

template <typename Parameter>
inline constexpr bool isWritten =
    std::is_lvalue_reference_v<Parameter> && !std::is_const_v<std::remove_reference_t<Parameter>>;

// Adds the tensors of one argument of a kernel.
template <typename T>
void addOperands(c10::openreg::OperandList& operands, const T& argument, bool is_written) {
  if constexpr (std::is_same_v<T, Tensor>) {
    operands.push_back({argument.unsafeGetTensorImpl(), is_written});
  } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    if (argument.has_value()) {
      addOperands(operands, *argument, is_written);
    }
  } else if constexpr (std::is_same_v<T, HostTensor>) {
    operands.push_back({argument.tensor.unsafeGetTensorImpl(), is_written, nullptr, true});
  } else if constexpr (std::is_same_v<T, TensorList> || std::is_same_v<T, ITensorListRef>) {
    for (const Tensor& tensor : argument) {
      addOperands(operands, tensor, is_written);
    }
  } else if constexpr (std::is_same_v<T, c10::List<std::optional<Tensor>>>) {
    for (const std::optional<Tensor> tensor : argument) {
      addOperands(operands, tensor, is_written);
    }
  }
}

template <typename Parameters, typename... Args, size_t... Index>
void addArguments(c10::openreg::OperandList& operands, std::index_sequence<Index...> /*indices*/,
                  const Args&... args) {
  (addOperands(operands, args, isWritten<std::tuple_element_t<Index, Parameters>>), ...);
}

}  // namespace detail

// Reports to observers what the call of `function` reads and writes. `kernel` must live as long as
// the process. Errors: see Observer.h.
template <typename Function, typename... Args>
Verdict observeArguments(const char* kernel, c10::Device device, const Function& /*function*/,
                         const Args&... args) {
  using Parameters = typename detail::ParametersOf<Function>::Types;
  if constexpr (std::is_void_v<Parameters>) {
    return Verdict::Run;
  } else {
    return c10::openreg::observeAccesses(
        device.index(), kernel, [&](c10::openreg::OperandList& operands) {
          detail::addArguments<Parameters>(operands, std::index_sequence_for<Args...>(), args...);
        });
  }
}

template <c10::openreg::KernelName Name, typename Function, typename... Args>
void enqueue(c10::Device device, Function function, const Args&... args) {
  const Verdict verdict = observeArguments(Name.text, device, function, args...);
  launchOp<Name>(device, MadeBy{[&] { return bindArguments(device, function, args...); }}, verdict);
}

// Throws unless all tensors are on the device or are CPU tensors of 0 dimensions. `operation` is
// used in the error text.
OPENREG_EXPORT void checkSameDevice(const char* operation, c10::Device device,
                                    std::initializer_list<const TensorBase*> tensors);

// An operator whose CPU kernel writes only its first argument:
//   m.impl("relu_", &InPlace<"aten::relu_", &at::cpu::relu_>::call);
template <c10::openreg::KernelName Name, auto Kernel>
struct InPlace;

template <c10::openreg::KernelName Name, typename... Args, Tensor& (*Kernel)(Tensor&, Args...)>
struct InPlace<Name, Kernel> {
  static Tensor& call(Tensor& self, Args... args) {
    [[maybe_unused]] const auto check = [&](const auto& argument) {
      if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, Tensor>) {
        checkSameDevice(Name.text, self.device(), {&argument});
      }
    };
    (check(args), ...);
    enqueue<Name>(self.device(), Kernel, self, std::decay_t<Args>(args)...);
    return self;
  }
};

}  // namespace at::openreg
