#include "csrc/aten/fallback/StreamCall.h"

#include <ATen/core/List.h>
#include <ATen/ops/copy_native.h>

#include <atomic>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "csrc/aten/cpu/ResultMemory.h"
#include "csrc/aten/cpu/SubByteIntegers.h"
#include "csrc/aten/fallback/Verification.h"
#include "csrc/aten/launch/ListTensors.h"

namespace at::openreg {
namespace {

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
// Such a call owns about as much memory as its place in the queue.
constexpr size_t kFewTensors = 16;

std::atomic<int64_t> copied_results{0};

// The plan is wrong: this call fails, and the next one makes a new plan.
template <typename... Got>
[[noreturn]] void refute(const CallPlan& plan, const char* expected, const auto& number,
                         const auto& what, const Got&... got) {
  plan.is_refuted.store(true, std::memory_order_relaxed);
  // No exception of torch's: it is no check of data (Note [Errors of kernels on CUDA]).
  throw std::runtime_error(c10::str("expected ", expected, number, what,
                                    ", as in an earlier call with such arguments, got ", got...));
}

}  // namespace

void StreamCall::setArguments(const c10::OperatorHandle& op, std::shared_ptr<const CallPlan> plan,
                              c10::SmallVectorImpl<CallValue>& values, c10::ArrayRef<size_t> places,
                              c10::ArrayRef<const Tensor*> tensors, bool is_verified,
                              std::atomic<int64_t>& copied_bytes) {
  op_ = op;
  is_verified_ = is_verified;
  copied_bytes_ = &copied_bytes;
  plan_ = std::move(plan);
  values_.assign(std::make_move_iterator(values.begin()), std::make_move_iterator(values.end()));
  places_.assign(places.begin(), places.end());
  aliases_.clear();
  aliases_.reserve(tensors.size());
  for (const Tensor* tensor : tensors) {
    aliases_.emplace_back(*tensor);
  }
}

torch::jit::Stack StreamCall::allocateResults(c10::ArrayRef<const Tensor*> device_tensors) {
  torch::jit::Stack results;
  results.reserve(plan_->results.size());
  destinations_.clear();
  for (const PlannedResult& planned : plan_->results) {
    if (!planned.is_list) {
      results.emplace_back(allocate(planned.tensors.front(), device_tensors));
      continue;
    }
    c10::List<Tensor> list;
    list.reserve(planned.tensors.size());
    destinations_.reserve(planned.tensors.size());
    for (const PlannedTensor& one : planned.tensors) {
      list.push_back(allocate(one, device_tensors));
    }
    results.emplace_back(std::move(list));
  }
  return results;
}

// A result for the caller; records where the kernel must write it.
Tensor StreamCall::allocate(const PlannedTensor& planned,
                            c10::ArrayRef<const Tensor*> device_tensors) {
  switch (planned.kind) {
    case PlannedTensor::Kind::Undefined:
      return Tensor();
    case PlannedTensor::Kind::Argument:
      return *device_tensors[planned.argument_index];
    case PlannedTensor::Kind::New:
      Tensor result = planned.allocate();
      destinations_.emplace_back(result);
      return result;
  }
  TORCH_INTERNAL_ASSERT(false);
}

void StreamCall::run() const {
  const ListTensors tensors(aliases_);
  torch::jit::Stack arguments = argumentsOf(values_, places_, tensors.all());
  torch::jit::Stack copies;
  if (C10_UNLIKELY(is_verified_)) {
    copies = argumentsOf(values_, places_, copiesOf(tensors.all()));
  }
  compute(std::move(arguments));
  if (C10_UNLIKELY(is_verified_)) {
    verify(std::move(copies));
  }
}

// docs: results-in-place
// The operator computes the results; those that are not in place are copied.
void StreamCall::compute(torch::jit::Stack stack) const {
  ResultMemory memory;
  for (const TensorAlias& destination : destinations_) {
    memory.offer(destination.storageData(), destination.storageNbytes());
  }
  op_->redispatchBoxed(kCpu, &stack);
  NewResults computed;
  for (size_t i = 0; i < plan_->results.size(); ++i) {
    gather(plan_->results[i], stack[i], computed);
  }
  // First the results that lie in the memory of another result.
  for (size_t i = 0; i < computed.size(); ++i) {
    if (!isInPlace(computed[i], i) && ResultMemory::mayHold(computed[i].tensor)) {
      computed[i].tensor = computed[i].tensor.clone();
    }
  }
  for (size_t i = 0; i < computed.size(); ++i) {
    if (!isInPlace(computed[i], i)) {
      Tensor destination = copyable(destinations_[i].tensor());
      at::native::copy_(destination, copyable(computed[i].tensor), /*non_blocking=*/false);
      copied_results.fetch_add(1, std::memory_order_relaxed);
      copied_bytes_->fetch_add(static_cast<int64_t>(destination.nbytes()),
                               std::memory_order_relaxed);
    }
  }
}
// docs: end

void StreamCall::verify(torch::jit::Stack arguments) const {
  const auto wrong = firstWrongResult(*op_, std::move(arguments), tensorsOf(destinations_));
  if (wrong.has_value()) {
    plan_->is_refuted.store(true, std::memory_order_relaxed);
    throw std::runtime_error(
        c10::str("OPENREG_FALLBACK_VERIFY: expected result ", *wrong, " of ", op_->operator_name(),
                 " to be bit-identical to that of the functional operator, got different bits"));
  }
}

// Adds what the kernel returned for one result.
void StreamCall::gather(const PlannedResult& planned, const c10::IValue& result,
                        NewResults& results) const {
  if (!planned.is_list) {
    gatherTensor(planned.tensors.front(), result.toTensor(), results);
    return;
  }
  const auto elements = result.toListRef();
  if (elements.size() != planned.tensors.size()) {
    refute(*plan_, "a list of ", planned.tensors.size(), " tensors", "one of ", elements.size());
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    gatherTensor(planned.tensors[i], elements[i].toTensor(), results);
  }
}

void StreamCall::gatherTensor(const PlannedTensor& planned, const Tensor& result,
                              NewResults& results) const {
  if (planned.kind != PlannedTensor::Kind::New) {
    return;
  }
  if (C10_UNLIKELY(!planned.describes(result))) {
    refute(*plan_, "a result of sizes ", IntArrayRef(planned.sizes),
           c10::str(" and type ", planned.dtype), result.defined() ? result.toString() : "none",
           " of sizes ", result.defined() ? result.sizes() : IntArrayRef());
  }
  results.push_back({&planned, result});
}

bool StreamCall::isInPlace(const NewResult& result, size_t index) const {
  return destinations_[index].isDescriptionOf(result.tensor) &&
         result.tensor.is_conj() == result.planned->is_conj &&
         result.tensor.is_neg() == result.planned->is_neg;
}

size_t StreamCall::ownedBytes() const {
  if (C10_LIKELY(aliases_.size() + destinations_.size() <= kFewTensors)) {
    return 0;
  }
  return (aliases_.capacity() + destinations_.capacity()) * sizeof(TensorAlias) +
         values_.capacity() * sizeof(CallValue) + places_.capacity() * sizeof(size_t);
}

int64_t copiedResultCount() { return copied_results.load(std::memory_order_relaxed); }

size_t keptCallCount() { return FinishedCalls<StreamCall>::count(); }

}  // namespace at::openreg
