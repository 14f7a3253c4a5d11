// A call of the fallback on the calling thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/aten/fallback/BoxedCall.h"
#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "csrc/aten/launch/FirstPlaces.h"

namespace at::openreg {

// Note [One call of the fallback]
// Converts the arguments of one call for the CPU kernel, and its results back. Every openreg tensor
// has one alias, however often it is passed, so that the kernel can compare tensors for identity.
//
// A call, which the caller has reported to observers, waits for the current stream of `device`,
// which must be the current device, calls the CPU kernel with CPU tensors that alias the openreg
// tensors, and replaces the arguments on the stack by the results. Arguments that the kernel wrote
// or resized in place are written or resized in place, results that are views stay views, and new
// results are copied to device memory.
//
// Note [Errors of data in a call on the host]
// On CUDA, a kernel that rejects its data fails on the stream, and the host sees error 710 when it
// waits. A call on the calling thread sees the CPU kernel's exception at once, and cannot tell from
// it whether the kernel rejects the data or an argument. So where the library serves CUDA, such a
// kernel runs again on dummies of the tensors (Note [Trial runs]): if it accepts these, the data
// was wrong, and the exception takes the way of a launched kernel's.
class HostCall {
 public:
  // `cpu_key` is the kernel's: c10::DispatchKey::CPU, or that of CPU tensors of another layout.
  // `call` describes the arguments on the stack, and is not used after they have been replaced.
  HostCall(BoxedCall& call, c10::DispatchKey cpu_key, torch::jit::Stack* stack)
      : call_(call), cpu_key_(cpu_key), stack_(stack) {}

  // Call one of the two, once. The second returns the plan for running such a call on the stream.
  void run();
  std::shared_ptr<const CallPlan> runAndLearn(bool has_warned_before);

 private:
  void takeArguments();
  Tensor aliasOf(const Tensor& tensor);
  Tensor keepAlias(const Tensor& tensor, Tensor alias);
  void passOnRequiresGrad();
  // Errors: NotImplementedError if no CPU kernel can serve the call.
  void checkHasKernel() const;
  void callCpuKernel();
  bool acceptsDummies() const;
  [[noreturn]] void failOnStream(std::exception_ptr exception) const;
  std::shared_ptr<CallPlan> planOfResults() const;
  void takeOverResizes();
  void takeOverResize(size_t index);
  void replaceResults();
  Tensor deviceTensor(const Tensor& tensor);
  std::vector<Tensor> deviceComponents(const Tensor& tensor);
  void copyMemory(const Tensor& to, const Tensor& from) const;
  Tensor moveToDevice(const Tensor& result) const;

  BoxedCall& call_;
  FallbackOperator& known_ = call_.known();
  const c10::OperatorHandle& op_ = call_.op();
  const c10::FunctionSchema& schema_ = call_.schema();
  const c10::DispatchKey cpu_key_;
  const c10::Device device_ = call_.device();
  torch::jit::Stack* stack_;
  bool waits_on_cuda_ = false;
  std::vector<Tensor> operands_;  // the different tensors that the CPU kernel takes
  std::vector<std::pair<Tensor, Tensor>> aliases_;  // openreg tensor, its CPU alias
  // Places in `aliases_`; see Note [Long lists].
  FirstPlaces<const TensorImpl*> originals_;  // with the components of tensors that are not plain
  FirstPlaces<const void*> storages_;         // of the plain originals, by identityOf()
  // The same for the aliases after the kernel has run, because it may have changed their storages.
  FirstPlaces<const TensorImpl*> alias_places_;
  FirstPlaces<const void*> alias_storages_;
};

}  // namespace at::openreg
