// A call of the fallback on the calling thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <utility>
#include <vector>

#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "csrc/aten/kernel/FirstPlaces.h"

namespace at::openreg {

// Note [One call of the fallback]
// The arguments of one call, on their way to the CPU kernel and back. Every openreg tensor has one
// alias, however often it is passed, so that the kernel sees what is the same tensor as the same.
//
// A call waits for the current stream of `device`, which is the current device, calls the CPU
// kernel with CPU tensors that alias the openreg tensors, and puts the results in place of the
// arguments. What the kernel wrote or resized in place is written and resized in place, what it
// returned as a view is a view, and new results move into device memory.
class HostCall {
 public:
  // `cpu_key` is the kernel's: c10::DispatchKey::CPU, or that of CPU tensors of another layout.
  HostCall(const FallbackOperator& known, const c10::OperatorHandle& op, c10::DispatchKey cpu_key,
           c10::Device device, torch::jit::Stack* stack);

  // One of the two, once. The second returns the plan by which such a call can run on the stream,
  // and tries how a kernel writes the results.
  void run();
  std::shared_ptr<const CallPlan> runAndLearn(bool has_warned_before);

 private:
  struct Aliases;
  friend struct Aliases;

  void waitForArguments() const;
  void recordArguments() const;
  void replaceArguments();
  Tensor aliasOf(const Tensor& tensor);
  Tensor keepAlias(const Tensor& tensor, Tensor alias);
  void passOnRequiresGrad();
  void callCpuKernel();
  void takeOverResizes();
  void takeOverResize(size_t index);
  void replaceResults();
  void replaceResult(c10::IValue& value);
  void findAliases();
  Tensor resultOf(const Tensor& result);
  Tensor deviceTensor(const Tensor& tensor);
  std::vector<Tensor> deviceComponents(const Tensor& tensor);
  void copyMemory(const Tensor& to, const Tensor& from) const;
  Tensor moveToDevice(const Tensor& result) const;
  void plan(PlannedTensor tensor) { plan_->results.back().tensors.push_back(std::move(tensor)); }

  const FallbackOperator& known_;
  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const c10::DispatchKey cpu_key_;
  const c10::Device device_;
  torch::jit::Stack* stack_;
  std::vector<std::pair<Tensor, Tensor>> aliases_;  // openreg tensor, its CPU alias
  // Places in `aliases_`; see Note [Long lists].
  FirstPlaces<const TensorImpl*> originals_;
  FirstPlaces<const void*> storages_;  // of the originals that are plain, by identityOf()
  // The same for the aliases, when the kernel has run: it may have given them other storages.
  FirstPlaces<const TensorImpl*> alias_places_;
  FirstPlaces<const void*> alias_storages_;
  std::shared_ptr<CallPlan> plan_ = std::make_shared<CallPlan>();
  bool can_be_planned_ = true;
};

}  // namespace at::openreg
