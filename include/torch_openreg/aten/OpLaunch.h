// How an operator enqueues its CPU kernel.
//
//   Tensor out = ...;                               // shape, dtype: on the calling thread
//   launchOp<"aten::relu">(out.device(), [in = TensorAlias(self), out_ = TensorAlias(out)] {
//     Tensor result = out_.tensor();
//     at::cpu::clamp_min_outf(in.tensor(), 0, result);  // on the worker
//   });
#pragma once

#include <type_traits>
#include <utility>

#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/HostWork.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {

// Waits for the current stream of the device: for operators that give the host a value.
// `operation` is who waits, for error texts.
// Errors: the stream's asynchronous error, and that of checkNotCapturing().
OPENREG_EXPORT void waitForCurrentStream(c10::Device device, const char* operation);

// For operations that no graph can repeat, as they run on the host.
// Errors: AcceleratorError if the stream is capturing. The capture is then invalid.
OPENREG_EXPORT void checkNotCapturing(const c10::openreg::OpenRegStream& stream,
                                      const char* operation);

namespace detail {

// A kernel in the environment of its call.
template <typename Kernel>
struct InEnvironment {
  Kernel kernel;
  KernelEnvironment environment;

  void operator()() const {
    environment.enter();
    kernel();
  }
};

// A kernel and what a trace says about it.
template <typename Kernel>
struct Described {
  Kernel kernel;
  c10::openreg::WorkDescription description;

  void operator()() const { kernel(); }
  void describe(orActivityRecord* record) const { description.describe(record); }
};

}  // namespace detail

// docs: launch-op
// Enqueues `kernel` on the current stream of `device`, in the environment of the calling thread.
template <c10::openreg::KernelName Name, typename Kernel>
void launchOp(c10::Device device, Kernel&& kernel) {
  using Closure = detail::InEnvironment<std::decay_t<Kernel>>;
  c10::openreg::launchKernel<Name>(
      c10::openreg::getCurrentOpenRegStream(device.index()),
      Closure{std::forward<Kernel>(kernel), KernelEnvironment::current()});
}
// docs: end

// The same for a copy or a fill, which a trace shows as such.
template <c10::openreg::KernelName Name, typename Kernel>
void launchOp(c10::Device device, const c10::openreg::WorkDescription& description,
              Kernel&& kernel) {
  using Closure = detail::Described<detail::InEnvironment<std::decay_t<Kernel>>>;
  c10::openreg::launchKernel<Name>(
      c10::openreg::getCurrentOpenRegStream(device.index()),
      Closure{{std::forward<Kernel>(kernel), KernelEnvironment::current()}, description});
}

// The same for a type of kernel whose name is known when it runs: `kernel` is describeOp's.
template <typename Kernel>
void launchOp(const orKernel& described, c10::Device device, Kernel&& kernel) {
  using Closure = detail::InEnvironment<std::decay_t<Kernel>>;
  c10::openreg::launchKernel(described, c10::openreg::getCurrentOpenRegStream(device.index()),
                             Closure{std::forward<Kernel>(kernel), KernelEnvironment::current()});
}

// `name` lives as long as the process.
template <typename Kernel>
constexpr orKernel describeOp(const char* name) {
  return c10::openreg::describeKernel<detail::InEnvironment<Kernel>>(name);
}

}  // namespace at::openreg
