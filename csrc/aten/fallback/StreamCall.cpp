#include "csrc/aten/fallback/StreamCall.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/ops/copy_native.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "csrc/aten/fallback/BoxedArguments.h"
#include "csrc/aten/fallback/CallAccesses.h"
#include "csrc/aten/fallback/FinishedCalls.h"
#include "csrc/aten/fallback/OutVariantProbe.h"
#include "csrc/aten/kernel/FirstPlaces.h"
#include "csrc/aten/kernel/ListTensors.h"
#include "csrc/aten/kernel/OwningLaunch.h"
#include "csrc/aten/kernel/ResultMemory.h"
#include "csrc/core/Settings.h"
#include "csrc/memory/StorageResize.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {
namespace {

const c10::openreg::Setting kVerify{
    "OPENREG_FALLBACK_VERIFY", "0", "0 or 1", "0 1",
    "1: each planned call of the fallback is compared with the functional result."};

std::atomic<int64_t> copied_results{0};

// The tensors among a call's arguments, which outlive this object. A tensor is added once, however
// often it is passed, so that the kernel can compare tensors for identity.
class ArgumentTensors {
 public:
  explicit ArgumentTensors(std::vector<TensorAlias>& aliases) : aliases_(aliases) {}

  // The tensor's index in the aliases; a new tensor is added.
  size_t slotOf(const Tensor& tensor) {
    const size_t slot = slots_.findOrAdd(tensor.unsafeGetTensorImpl(), aliases_.size());
    if (slot < aliases_.size()) {
      return slot;
    }
    aliases_.emplace_back(tensor);
    if (isOpenReg(tensor)) {
      on_device_.push_back(&tensor);
    }
    return slot;
  }

  // The `index`th openreg tensor, counted as in PlannedTensor.
  const Tensor& onDevice(size_t index) const { return *on_device_[index]; }

 private:
  std::vector<TensorAlias>& aliases_;
  FirstPlaces<const TensorImpl*> slots_;  // in `aliases_`; see Note [Long lists]
  c10::SmallVector<const Tensor*, 8> on_device_;
};

// A boxed call that is enqueued for the worker.
class StreamCall {
 public:
  // Takes the arguments, allocates the results and appends them to `results`.
  void prepare(const FallbackOperator& known, const c10::OperatorHandle& op,
               std::shared_ptr<const CallPlan> plan, c10::Device device,
               c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack* results) {
    op_ = op;
    known_ = &known;
    plan_ = std::move(plan);
    values_.clear();
    slots_.clear();
    aliases_.clear();
    destinations_.clear();

    ArgumentTensors tensors(aliases_);
    const auto& schema = op.schema();
    for (size_t i = 0; i < arguments.size(); ++i) {
      values_.push_back(visitArgument(arguments[i], schema.arguments()[i],
                                      Holder{*this, arguments, device, tensors}));
    }
    for (const PlannedResult& planned : plan_->results) {
      if (!planned.is_list) {
        results->emplace_back(allocate(planned.tensors.front(), tensors));
        continue;
      }
      c10::List<Tensor> list;
      list.reserve(planned.tensors.size());
      destinations_.reserve(planned.tensors.size());
      for (const PlannedTensor& one : planned.tensors) {
        list.push_back(allocate(one, tensors));
      }
      results->emplace_back(std::move(list));
    }
  }

  // Runs on the worker, each time the call runs; see Note [Kernels run again] in openreg/stream.h.
  void run() const {
    torch::jit::Stack stack;
    stack.reserve(values_.size() + destinations_.size());
    const ListTensors held(aliases_);
    const std::vector<Tensor>& tensors = held.all();
    size_t next = 0;
    for (const Value& value : values_) {
      stack.push_back(release(value, tensors, next));
    }
    const KnownWarnings quiet(*plan_);
    const bool is_verified = isVerifying() && plan_->areAllNew() && !known_->drawsNumbers();
    torch::jit::Stack copies;
    if (C10_UNLIKELY(is_verified)) {
      copies = copiesOf(*op_, stack);
    }
    if (plan_->writing == CallPlan::Writing::OutVariant) {
      write(std::move(stack));
    } else {
      compute(std::move(stack));
    }
    if (C10_UNLIKELY(is_verified)) {
      verify(std::move(copies));
    }
  }

  // What counts in the queue; see csrc/aten/kernel/OwningLaunch.h. Of a call without a long list
  // that is about as much as its place in the queue.
  size_t ownedBytes() const {
    if (C10_LIKELY(aliases_.size() + destinations_.size() <= kFewTensors)) {
      return 0;
    }
    return (aliases_.capacity() + destinations_.capacity()) * sizeof(TensorAlias) +
           values_.capacity() * sizeof(Value) + slots_.capacity() * sizeof(size_t);
  }

  bool isWorthKeeping() const { return aliases_.capacity() <= kMaxKeptTensors; }

  StreamCall* next_finished = nullptr;

 private:
  enum class Kind : uint8_t { Plain, Tensor, TensorList, OptionalTensorList };

  // For Kind::Plain the value, for lists their length; the tensors are in `slots_`, in order.
  struct Value {
    Kind kind;
    c10::IValue plain;
  };

  // A visitor that converts an argument to what the call stores of it.
  struct Holder {
    StreamCall& call;
    c10::ArrayRef<c10::IValue> all_arguments;
    c10::Device current_device;
    ArgumentTensors& arguments;

    Value tensor(const Tensor& tensor) const {
      call.slots_.push_back(arguments.slotOf(tensor));
      return {Kind::Tensor, {}};
    }
    Value tensors(c10::ArrayRef<c10::IValue> list) const { return all(list, Kind::TensorList); }
    Value optionalTensors(c10::ArrayRef<c10::IValue> list) const {
      return all(list, Kind::OptionalTensorList);
    }
    Value device(c10::Device /*device*/) const { return {Kind::Plain, c10::Device(kCPU)}; }
    Value generator(const std::optional<Generator>& generator) const {
      return {Kind::Plain, engineForLaunch(generator, current_device.index())};
    }
    Value plain(const c10::IValue& value) const { return {Kind::Plain, value}; }

    Value all(c10::ArrayRef<c10::IValue> list, Kind kind) const {
      if (C10_UNLIKELY(list.size() > call.aliases_.capacity() - call.aliases_.size())) {
        call.reserveForLists(all_arguments);
      }
      for (const c10::IValue& element : list) {
        call.slots_.push_back(element.isNone() ? kNoTensor : arguments.slotOf(element.toTensor()));
      }
      return {kind, static_cast<int64_t>(list.size())};
    }
  };

  // Reserves memory for all tensors at once.
  void reserveForLists(c10::ArrayRef<c10::IValue> arguments) {
    size_t count = arguments.size();
    for (const c10::IValue& value : arguments) {
      if (value.isTensorList() || value.isOptionalTensorList()) {
        count += value.toListRef().size();
      }
    }
    slots_.reserve(count);
    aliases_.reserve(count);
  }

  // Drops warnings that were already given on the calling thread.
  class KnownWarnings : public c10::WarningHandler {
   public:
    explicit KnownWarnings(const CallPlan& plan) : plan_(plan) {
      if (C10_UNLIKELY(!plan.warnings.empty())) {
        next_ = c10::WarningUtils::get_warning_handler();
        guard_.emplace(this);
      }
    }

    void process(const c10::Warning& warning) override {
      const auto is_same = [&](const c10::Warning& known) { return known.msg() == warning.msg(); };
      if (std::none_of(plan_.warnings.begin(), plan_.warnings.end(), is_same)) {
        next_->process(warning);
      }
    }

   private:
    const CallPlan& plan_;
    c10::WarningHandler* next_ = nullptr;
    std::optional<c10::WarningUtils::WarningHandlerGuard> guard_;
  };

  // Allocates a result for the caller, and records where the kernel must write it.
  Tensor allocate(const PlannedTensor& planned, const ArgumentTensors& arguments) {
    switch (planned.kind) {
      case PlannedTensor::Kind::Undefined:
        return Tensor();
      case PlannedTensor::Kind::Argument:
        return arguments.onDevice(planned.argument_index);
      case PlannedTensor::Kind::New:
        Tensor result = planned.allocate();
        destinations_.emplace_back(result);
        return result;
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  c10::IValue release(const Value& value, const std::vector<Tensor>& tensors, size_t& next) const {
    switch (value.kind) {
      case Kind::Plain:
        return value.plain;
      case Kind::Tensor:
        return tensors[slots_[next++]];
      case Kind::TensorList: {
        c10::List<Tensor> list;
        list.reserve(static_cast<size_t>(value.plain.toInt()));
        for (int64_t i = 0; i < value.plain.toInt(); ++i) {
          list.push_back(tensors[slots_[next++]]);
        }
        return list;
      }
      case Kind::OptionalTensorList: {
        c10::List<std::optional<Tensor>> list;
        list.reserve(static_cast<size_t>(value.plain.toInt()));
        for (int64_t i = 0; i < value.plain.toInt(); ++i) {
          const size_t slot = slots_[next++];
          list.push_back(slot == kNoTensor ? std::optional<Tensor>() : tensors[slot]);
        }
        return list;
      }
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  // The operator's out variant writes the results.
  void write(torch::jit::Stack arguments) const {
    const std::vector<Tensor> results = tensorsOf(destinations_);
    callOutVariant(*known_, std::move(arguments), results);
    for (size_t i = 0; i < results.size(); ++i) {
      if (C10_UNLIKELY(!destinations_[i].isDescriptionOf(results[i]))) {
        plan_->is_refuted.store(true, std::memory_order_relaxed);
        destinations_[i].throwNotWritten(results[i]);
      }
    }
  }

  // docs: results-in-place
  // The operator computes the results; those that are not in place are copied.
  void compute(torch::jit::Stack stack) const {
    const ResultMemory memory(destinations_);
    op_->redispatchBoxed(kCpu, &stack);
    NewResults computed;
    for (size_t i = 0; i < plan_->results.size(); ++i) {
      gather(plan_->results[i], stack[i], computed);
    }
    // First the results that lie in the memory of another result.
    for (size_t i = 0; i < computed.size(); ++i) {
      if (!isInPlace(computed[i], i) && memory.holds(computed[i].tensor)) {
        computed[i].tensor = computed[i].tensor.clone();
      }
    }
    for (size_t i = 0; i < computed.size(); ++i) {
      if (!isInPlace(computed[i], i)) {
        Tensor destination = destinations_[i].tensor();
        at::native::copy_(destination, computed[i].tensor, /*non_blocking=*/false);
        copied_results.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }
  // docs: end

  void verify(torch::jit::Stack arguments) const {
    const auto wrong = firstWrongResult(*op_, std::move(arguments), tensorsOf(destinations_));
    if (wrong.has_value()) {
      plan_->is_refuted.store(true, std::memory_order_relaxed);
      TORCH_CHECK(false, "OPENREG_FALLBACK_VERIFY: expected result ", *wrong, " of ",
                  op_->operator_name(),
                  " to be bit-identical to that of the functional operator, got different bits");
    }
  }

  static bool isVerifying() {
    static const bool is_verifying = kVerify.isOn();
    return is_verifying;
  }

  struct NewResult {
    const PlannedTensor* planned;
    Tensor tensor;
  };

  using NewResults = c10::SmallVector<NewResult, 4>;  // parallel to `destinations_`

  // Adds what the kernel returned for one result.
  void gather(const PlannedResult& planned, const c10::IValue& result, NewResults& results) const {
    if (!planned.is_list) {
      gatherTensor(planned.tensors.front(), result.toTensor(), results);
      return;
    }
    const auto elements = result.toListRef();
    if (elements.size() != planned.tensors.size()) {
      refute("a list of ", planned.tensors.size(), " tensors", "one of ", elements.size());
    }
    for (size_t i = 0; i < elements.size(); ++i) {
      gatherTensor(planned.tensors[i], elements[i].toTensor(), results);
    }
  }

  void gatherTensor(const PlannedTensor& planned, const Tensor& result, NewResults& results) const {
    if (planned.kind != PlannedTensor::Kind::New) {
      return;
    }
    if (C10_UNLIKELY(!planned.describes(result))) {
      refute("a result of sizes ", IntArrayRef(planned.sizes),
             c10::str(" and type ", planned.dtype), result.defined() ? result.toString() : "none",
             " of sizes ", result.defined() ? result.sizes() : IntArrayRef());
    }
    results.push_back({&planned, result});
  }

  bool isInPlace(const NewResult& result, size_t index) const {
    return destinations_[index].isDescriptionOf(result.tensor) &&
           result.tensor.is_conj() == result.planned->is_conj &&
           result.tensor.is_neg() == result.planned->is_neg;
  }

  // The plan is wrong: this call fails, and the next one makes a new plan.
  template <typename... Got>
  [[noreturn]] void refute(const char* expected, const auto& number, const auto& what,
                           const Got&... got) const {
    plan_->is_refuted.store(true, std::memory_order_relaxed);
    TORCH_CHECK(false, "expected ", expected, number, what,
                ", as in an earlier call with such arguments, got ", got...);
  }

  static constexpr c10::DispatchKeySet kCpu{c10::DispatchKey::CPU};
  static constexpr size_t kNoTensor = static_cast<size_t>(-1);
  static constexpr size_t kMaxKeptTensors = 128;  // 20 KB
  static constexpr size_t kFewTensors = 16;

  std::optional<c10::OperatorHandle> op_;
  const FallbackOperator* known_ = nullptr;
  std::shared_ptr<const CallPlan> plan_;
  std::vector<Value> values_;
  std::vector<size_t> slots_;  // per tensor argument or element, its place in `aliases_`
  std::vector<TensorAlias> aliases_;
  std::vector<TensorAlias> destinations_;  // per PlannedTensor::Kind::New of the plan
};

struct GiveBack {
  void operator()(StreamCall* call) const { FinishedCalls<StreamCall>::giveBack(call); }
};

using CallPtr = std::unique_ptr<StreamCall, GiveBack>;

void resizeArguments(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
                     const std::vector<PlannedResize>& resizes) {
  if (C10_LIKELY(resizes.empty())) {
    return;
  }
  c10::SmallVector<Tensor, 8> tensors;
  FirstPlaces<const TensorImpl*> places;
  for (size_t i = 0; i < arguments.size(); ++i) {
    visitTensors(arguments[i], schema.arguments()[i], [&](const Tensor& tensor) {
      if (isOpenReg(tensor) &&
          places.findOrAdd(tensor.unsafeGetTensorImpl(), tensors.size()) == tensors.size()) {
        tensors.push_back(tensor);
      }
    });
  }
  for (const PlannedResize& resize : resizes) {
    const Tensor& tensor = tensors[resize.argument_index];
    const size_t nbytes = at::detail::computeStorageNbytes(
        resize.sizes, resize.strides, tensor.itemsize(), tensor.storage_offset());
    if (nbytes > tensor.storage().nbytes()) {
      c10::openreg::resizeStorage(tensor.storage(), nbytes);
    }
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(resize.sizes, resize.strides);
  }
}

// The closure; small, because the queue stores it in place.
struct RunCall {
  CallPtr call;

  size_t ownedBytes() const { return call->ownedBytes(); }
  void operator()() const { call->run(); }
};

}  // namespace

int64_t copiedResultCount() { return copied_results.load(std::memory_order_relaxed); }

size_t keptCallCount() { return FinishedCalls<StreamCall>::count(); }

orKernel describeStreamCall(const char* name) { return describeOwningOp<RunCall>(name); }

void callOnStream(const FallbackOperator& known, const c10::OperatorHandle& op,
                  std::shared_ptr<const CallPlan> plan, c10::Device device,
                  torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  resizeArguments(op.schema(), arguments, plan->resizes);
  for (const c10::Warning& warning : plan->warnings) {
    c10::warn(warning);
  }
  RunCall run{CallPtr(FinishedCalls<StreamCall>::take())};
  torch::jit::Stack results;
  run.call->prepare(known, op, std::move(plan), device, arguments, &results);
  observeCall(known, op.schema(), device, arguments, results);
  launchOp(known.kernel(), device, std::move(run));
  torch::jit::drop(*stack, arguments.size());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

}  // namespace at::openreg
