// How the arguments of a CPU function get to a worker.
//
// enqueue<"aten::name">(device, function, arguments...) calls `function` on the current stream of
// `device`, with every argument as the worker has to see it:
//   Tensor, optional<Tensor>, TensorList   CPU tensors on the same memory (TensorAlias)
//   Generator                              the engine of the device's generator, in launch order
//   ArrayRef                               a copy that the closure owns
//   anything else                          a copy
// Tensors that the host makes for the kernel, such as staged data, go as StagedTensor.
//
// Threads, GIL, capture, ownership and errors of a launch are those of Launch.h. Besides: arguments
// are taken over before the call returns and may change or go away then, but for the memory of
// tensors (Note [Lifetimes of enqueued work] in TensorAlias.h). An argument that cannot be taken
// over throws at the call. In a graph, every replay sees the arguments that were captured.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <initializer_list>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {

// A CPU tensor that the closure owns, passed to the kernel as it is.
struct StagedTensor {
  Tensor tensor;
};

// A CPU tensor that the caller keeps alive and unchanged until the kernel has run.
struct HostTensor {
  const Tensor& tensor;
};

namespace detail {

// hold() runs on the calling thread, release() on the worker.
template <typename T>
struct Argument {
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

template <>
struct Argument<TensorList> {
  static std::vector<TensorAlias> hold(TensorList tensors, c10::Device /*device*/) {
    return aliasAll(tensors);
  }
  static std::vector<Tensor> release(const std::vector<TensorAlias>& held) {
    return tensorsOf(held);
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

template <typename T>
struct Argument<c10::ArrayRef<T>> {
  static std::vector<T> hold(c10::ArrayRef<T> values, c10::Device /*device*/) {
    return values.vec();
  }
  static const std::vector<T>& release(const std::vector<T>& held) { return held; }
};

template <>
struct Argument<std::optional<Generator>> {
  static Generator hold(const std::optional<Generator>& generator, c10::Device device) {
    return engineForLaunch(generator, device.index());
  }
  static std::optional<Generator> release(const Generator& held) { return held; }
};

}  // namespace detail

// The call of `function` as a closure, with the arguments as described above.
template <typename Function, typename... Args>
auto bindArguments(c10::Device device, Function function, const Args&... args) {
  return [function, held = std::make_tuple(detail::Argument<Args>::hold(args, device)...)] {
    std::apply(
        [&](const auto&... one) {
          std::tuple released(detail::Argument<Args>::release(one)...);
          std::apply([&](auto&... values) { function(values...); }, released);
        },
        held);
  };
}

template <c10::openreg::KernelName Name, typename Function, typename... Args>
void enqueue(c10::Device device, Function function, const Args&... args) {
  launchOp<Name>(device, bindArguments(device, function, args...));
}

// Throws unless all tensors are on the device or are CPU tensors of 0 dimensions. `operation` is
// named in the text.
OPENREG_EXPORT void checkSameDevice(const char* operation, c10::Device device,
                                    std::initializer_list<const TensorBase*> tensors);

// The operator whose CPU kernel writes its first argument and nothing else:
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
    const c10::DeviceGuard guard(self.device());
    enqueue<Name>(self.device(), Kernel, self, std::decay_t<Args>(args)...);
    return self;
  }
};

}  // namespace at::openreg
