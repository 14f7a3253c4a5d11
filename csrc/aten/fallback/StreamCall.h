// A call of the fallback whose results are planned: it runs on the stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/CallValues.h"
#include "csrc/aten/launch/FinishedCalls.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// What the worker needs of a call. Reused by later calls: see Note [Finished calls].
class StreamCall {
 public:
  // Takes the arguments of a call. `values` and `places` are as in argumentsOf(), and `tensors` are
  // those that the places mean. With `is_verified`, the results are computed twice and compared.
  // The bytes of results that are copied are added to `copied_bytes`, which must live as long as
  // the process.
  void setArguments(const c10::OperatorHandle& op, std::shared_ptr<const CallPlan> plan,
                    c10::SmallVectorImpl<CallValue>& values, c10::ArrayRef<size_t> places,
                    c10::ArrayRef<const Tensor*> tensors, bool is_verified,
                    std::atomic<int64_t>& copied_bytes);

  // The results for the caller: they are allocated by the plan on the current device, or are
  // arguments, which are `device_tensors`. Call once.
  torch::jit::Stack allocateResults(c10::ArrayRef<const Tensor*> device_tensors);

  // Runs on the worker, each time the call runs; see Note [Kernels run again] in openreg/stream.h.
  void run() const;

  // What counts in the queue; see torch_openreg/core/Launch.h.
  size_t ownedBytes() const;

  // For FinishedCalls.
  bool isWorthKeeping() const { return aliases_.capacity() <= kMaxKeptTensors; }
  StreamCall* next_finished = nullptr;

 private:
  struct NewResult {
    const PlannedTensor* planned;
    Tensor tensor;
  };

  using NewResults = c10::SmallVector<NewResult, 4>;  // parallel to `destinations_`

  Tensor allocate(const PlannedTensor& planned, c10::ArrayRef<const Tensor*> device_tensors);
  void compute(torch::jit::Stack stack) const;
  void verify(torch::jit::Stack arguments) const;
  void gather(const PlannedResult& planned, const c10::IValue& result, NewResults& results) const;
  void gatherTensor(const PlannedTensor& planned, const Tensor& result, NewResults& results) const;
  bool isInPlace(const NewResult& result, size_t index) const;

  static constexpr size_t kMaxKeptTensors = 128;  // 20 KB

  std::optional<c10::OperatorHandle> op_;
  bool is_verified_ = false;
  std::atomic<int64_t>* copied_bytes_ = nullptr;
  std::shared_ptr<const CallPlan> plan_;
  std::vector<CallValue> values_;
  std::vector<size_t> places_;  // in `aliases_`
  std::vector<TensorAlias> aliases_;
  std::vector<TensorAlias> destinations_;  // per PlannedTensor::Kind::New of the plan
};

// The closure of the kernel; small, because the queue stores it in place.
class StreamCallClosure {
 public:
  StreamCallClosure() : call_(FinishedCalls<StreamCall>::take()) {}

  StreamCall& call() { return *call_; }

  size_t ownedBytes() const { return call_->ownedBytes(); }
  void operator()() const { call_->run(); }

 private:
  struct GiveBack {
    void operator()(StreamCall* call) const { FinishedCalls<StreamCall>::giveBack(call); }
  };

  std::unique_ptr<StreamCall, GiveBack> call_;
};

// How many results the worker has copied since the start because their kernel did not compute them
// in place; see Note [Results in place].
OPENREG_EXPORT int64_t copiedResultCount();
// The number of calls in memory: pending and finished ones.
OPENREG_EXPORT size_t keptCallCount();

}  // namespace at::openreg
