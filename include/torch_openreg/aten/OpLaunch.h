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

#include "torch_openreg/aten/KernelNames.h"
#include "torch_openreg/aten/KernelWrapper.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/Launch.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/TraceScope.h"

namespace at::openreg {

using c10::openreg::MadeBy;
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

// The closure of an operator's kernel: describeKernel<WrappedKernel<Kernel>>(name) describes it.
template <typename Kernel>
struct WrappedKernel {
  Kernel kernel;
  [[no_unique_address]] KernelWrapper wrapper;

  decltype(auto) operator()() const {
    wrapper.enter();
    return kernel();
  }
  void describe(orActivityRecord* record) const
    requires c10::openreg::Describing<Kernel>
  {
    kernel.describe(record);
  }
  size_t ownedBytes() const
    requires c10::openreg::Owning<Kernel>
  {
    return kernel.ownedBytes();
  }
};

namespace detail {

// Reports the launch of a kernel, which has been made, and returns what surrounds it.
inline KernelWrapper reportedWrapper(const char* name) {
  c10::openreg::observe(&c10::openreg::Observer::kernelLaunch, name);
  return KernelWrapper::current();
}

}  // namespace detail

// docs: launch-op
// Enqueues a kernel on the current stream of `device`, in the environment of the calling thread.
// `described` is of the wrapped kernel. `verdict` is what observers have said of the kernel, and
// `op` the name that they see, which is that of `described` if it is null.
template <typename Kernel>
void launchOp(const orKernel& described, c10::Device device, Kernel&& kernel,
              Verdict verdict = Verdict::Run, const char* op = nullptr) {
  const auto wrap = [&] {
    return WrappedKernel<c10::openreg::ClosureOf<Kernel>>{
        c10::openreg::detail::asClosure(std::forward<Kernel>(kernel)),
        detail::reportedWrapper(op == nullptr ? described.name : op)};
  };
  c10::openreg::launchKernel(described, c10::openreg::getCurrentOpenRegStream(device.index()),
                             MadeBy{wrap}, verdict);
  KernelWrapper::noteLaunched();
}

// The same for an operator whose name is known at compile time: its kernel's name follows
// Note [Names of kernels].
template <c10::openreg::KernelName Operator, typename Kernel>
void launchOp(c10::Device device, Kernel&& kernel, Verdict verdict = Verdict::Run) {
  using Wrapped = WrappedKernel<c10::openreg::ClosureOf<Kernel>>;
  static constexpr orKernel kDescribed =
      c10::openreg::describeKernel<Wrapped>(kKernelName<Operator>.text);
  launchOp(kDescribed, device, std::forward<Kernel>(kernel), verdict, Operator.text);
}
// docs: end

// A copy or a fill, whose name and trace record are those of its description.
template <typename Kernel>
struct WorkKernel {
  Kernel kernel;
  c10::openreg::WorkDescription description;

  void operator()() const { kernel(); }
  void describe(orActivityRecord* record) const { description.describe(record); }
};
template <typename Kernel>
WorkKernel(Kernel, c10::openreg::WorkDescription) -> WorkKernel<Kernel>;

template <typename Kernel>
void launchOp(c10::Device device, WorkKernel<Kernel> work, Verdict verdict = Verdict::Run) {
  static constexpr auto kDescribed = std::apply(
      [](auto... names) {
        return std::array{
            c10::openreg::describeKernel<WrappedKernel<WorkKernel<Kernel>>>(names)...};
      },
      c10::openreg::WorkDescription::kNames);
  launchOp(kDescribed[work.description.nameIndex()], device, std::move(work), verdict);
}

}  // namespace at::openreg
