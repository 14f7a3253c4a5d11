// Enqueues the CPU kernel of an operator.
//
//   Tensor out = ...;                               // shape, dtype: on the calling thread
//   launchOp<"aten::relu">(out.device(), [in = TensorAlias(self), out_ = TensorAlias(out)] {
//     Tensor result = out_.tensor();
//     at::cpu::clamp_min_outf(in.tensor(), 0, result);  // on the worker
//   });
//
// Threads, GIL, capture, ownership and errors of a launch are those of Launch.h. The functions that
// wait do not release the GIL, because torch's bindings do so before they call an operator.
#pragma once

#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/aten/KernelNames.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/Launch.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/TraceScope.h"

namespace at::openreg {

using c10::openreg::Verdict;

// Waits for the calling thread's current stream of the device: for operators that return a value to
// the host. `operation` is used in error texts.
// Capture: an error, which invalidates the capture, because a graph cannot repeat the wait.
// Errors: the stream's asynchronous error, which is cleared; AcceleratorError while it captures.
OPENREG_EXPORT void waitForCurrentStream(c10::Device device, const char* operation);

// For operations that a graph cannot repeat because the host waits in them. Does not wait itself.
// Capture: an error, which invalidates the capture.
// Errors: AcceleratorError while the stream captures. Does not report an asynchronous error.
OPENREG_EXPORT void checkNotCapturing(const c10::openreg::OpenRegStream& stream,
                                      const char* operation);

namespace detail {

// A kernel in the environment of its call.
template <typename Kernel>
struct InEnvironment {
  Kernel kernel;
  KernelEnvironment environment;

  decltype(auto) operator()() const {
    environment.enter();
    return kernel();
  }
};

// A kernel with a description for traces.
template <typename Kernel>
struct Described {
  Kernel kernel;
  c10::openreg::WorkDescription description;

  decltype(auto) operator()() const { return kernel(); }
  void describe(orActivityRecord* record) const { description.describe(record); }
};

// Reports the launch of a kernel, which has been made, and returns the caller's environment for it.
// `name` is what observers see.
inline KernelEnvironment reportedEnvironment(const char* name) {
  c10::openreg::observe(&c10::openreg::Observer::kernelLaunch, name);
  return KernelEnvironment::current();
}

// Enqueues the closure that `make()` returns on the current stream of `device`: all launches of
// operators come here.
template <typename Make>
void launchMade(const orKernel& kernel, c10::Device device, const Make& make, Verdict verdict) {
  c10::openreg::launchMadeKernel(kernel, c10::openreg::getCurrentOpenRegStream(device.index()),
                                 make, verdict);
  noteKernelLaunched();
}

// The same for a kernel that runs in the environment of its call.
template <typename Make>
void launchMadeOp(const orKernel& kernel, const char* name, c10::Device device, const Make& make,
                  Verdict verdict) {
  using Kernel = std::invoke_result_t<const Make&>;
  launchMade(
      kernel, device, [&] { return InEnvironment<Kernel>{make(), reportedEnvironment(name)}; },
      verdict);
}

}  // namespace detail

// The descriptor of a type of kernel. `name` is the kernel's, as made by kernelNameOf(), and must
// live as long as the process.
template <typename Kernel>
constexpr orKernel describeOp(const char* name) {
  return c10::openreg::describeKernel<detail::InEnvironment<Kernel>>(name);
}

// docs: launch-op
// Enqueues the kernel that `make()` returns on the current stream of `device`, in the environment
// of the calling thread. The kernel's name follows Note [Names of kernels]. `verdict` is what
// observers have said of the kernel.
template <c10::openreg::KernelName Operator, typename Make>
void launchMadeOp(c10::Device device, const Make& make, Verdict verdict = Verdict::Run) {
  static constexpr orKernel kDescribed =
      describeOp<std::invoke_result_t<const Make&>>(kKernelName<Operator>.text);
  detail::launchMadeOp(kDescribed, Operator.text, device, make, verdict);
}

// The same for a kernel that exists.
template <c10::openreg::KernelName Operator, typename Kernel>
void launchOp(c10::Device device, Kernel&& kernel, Verdict verdict = Verdict::Run) {
  launchMadeOp<Operator>(device, c10::openreg::detail::returning(std::forward<Kernel>(kernel)),
                         verdict);
}
// docs: end

// The same for a copy or a fill, named by its description.
template <typename Kernel>
void launchWork(c10::Device device, const c10::openreg::WorkDescription& description,
                Kernel&& kernel, Verdict verdict = Verdict::Run) {
  using Closure = detail::Described<detail::InEnvironment<std::decay_t<Kernel>>>;
  static constexpr auto kKernels = std::apply(
      [](auto... names) { return std::array{c10::openreg::describeKernel<Closure>(names)...}; },
      c10::openreg::WorkDescription::kNames);
  detail::launchMade(
      kKernels[description.nameIndex()], device,
      [&] {
        return Closure{
            {std::forward<Kernel>(kernel), detail::reportedEnvironment(description.name())},
            description};
      },
      verdict);
}

// The same for a type of kernel whose name is known only at run time: `described` is describeOp's.
template <typename Kernel>
void launchOp(const orKernel& described, c10::Device device, Kernel&& kernel,
              Verdict verdict = Verdict::Run) {
  detail::launchMadeOp(described, described.name, device,
                       c10::openreg::detail::returning(std::forward<Kernel>(kernel)), verdict);
}

}  // namespace at::openreg
