#include "csrc/aten/fallback/StreamCall.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/copy_native.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "csrc/aten/fallback/BoxedArguments.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {
namespace {

// The tensors among a call's arguments. Each travels once, however often it is passed, so that the
// kernel sees what is the same tensor as the same.
class ArgumentTensors {
 public:
  explicit ArgumentTensors(std::vector<TensorAlias>& aliases) : aliases_(aliases) {}

  // The tensor's place in the aliases, where it is put if it is new.
  size_t slotOf(const Tensor& tensor) {
    const TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const auto seen = std::find(impls_.begin(), impls_.end(), impl);
    if (seen != impls_.end()) {
      return static_cast<size_t>(seen - impls_.begin());
    }
    impls_.push_back(impl);
    aliases_.emplace_back(tensor);
    if (isOpenReg(tensor)) {
      on_device_.push_back(tensor);
    }
    return impls_.size() - 1;
  }

  // The `index`th openreg tensor, as PlannedTensor counts them.
  const Tensor& onDevice(size_t index) const { return on_device_[index]; }

 private:
  std::vector<TensorAlias>& aliases_;
  c10::SmallVector<const TensorImpl*, 8> impls_;  // parallel to `aliases_`
  c10::SmallVector<Tensor, 8> on_device_;
};

// A boxed call on its way to the worker.
class EnqueuedCall {
 public:
  // Takes the arguments, allocates the results and puts them on `results`.
  void prepare(const FallbackOperator& known, const c10::OperatorHandle& op,
               std::shared_ptr<const ResultPlan> plan, c10::Device device,
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
      values_.push_back(hold(arguments[i], schema.arguments()[i], device, tensors));
    }
    for (const PlannedResult& planned : (*plan_)->results) {
      if (!planned.is_list) {
        results->emplace_back(allocate(planned.tensors.front(), device, tensors));
        continue;
      }
      c10::List<Tensor> list;
      for (const PlannedTensor& one : planned.tensors) {
        list.push_back(allocate(one, device, tensors));
      }
      results->emplace_back(std::move(list));
    }
  }

  // On the worker, each time the call runs; see Note [Kernels run again] in openreg/stream.h.
  void run() const {
    torch::jit::Stack stack;
    stack.reserve(values_.size() + destinations_.size());
    const std::vector<Tensor> tensors = tensorsOf(aliases_);
    size_t next = 0;
    for (const Value& value : values_) {
      stack.push_back(release(value, tensors, next));
    }
    constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
    const std::vector<PlannedResult>& planned = (*plan_)->results;
    if (areAllNew(planned)) {
      if (known_->outVariant().has_value()) {
        for (const TensorAlias& destination : destinations_) {
          stack.emplace_back(destination.tensor());
        }
        known_->outVariant()->redispatchBoxed(kCpu, &stack);
        return;
      }
      if (known_->resultKernel() != nullptr) {
        known_->resultKernel()(stack, tensorsOf(destinations_));
        return;
      }
    }
    op_->redispatchBoxed(kCpu, &stack);
    const TensorAlias* destination = destinations_.data();
    for (size_t i = 0; i < planned.size(); ++i) {
      destination = store(planned[i], stack[i], destination);
    }
  }

 private:
  friend class FinishedCalls;

  enum class Kind : uint8_t { Plain, Tensor, TensorList, OptionalTensorList };

  // For Kind::Plain the value, for lists their length; tensors are in `slots_`, in order.
  struct Value {
    Kind kind;
    c10::IValue plain;
  };

  Value hold(const c10::IValue& value, const c10::Argument& argument, c10::Device device,
             ArgumentTensors& tensors) {
    if (value.isTensor()) {
      slots_.push_back(tensors.slotOf(value.toTensor()));
      return {Kind::Tensor, {}};
    }
    if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto elements = value.toListRef();
      for (const c10::IValue& element : elements) {
        slots_.push_back(element.isNone() ? kNoTensor : tensors.slotOf(element.toTensor()));
      }
      return {value.isTensorList() ? Kind::TensorList : Kind::OptionalTensorList,
              static_cast<int64_t>(elements.size())};
    }
    if (value.isDevice() && value.toDevice().type() == c10::openreg::kDeviceType) {
      return {Kind::Plain, c10::Device(kCPU)};
    }
    if (value.isGenerator()) {
      return {Kind::Plain, engineForLaunch(value.toGenerator(), device.index())};
    }
    if (value.isNone() && isGenerator(argument)) {
      return {Kind::Plain, engineForLaunch(std::nullopt, device.index())};
    }
    return {Kind::Plain, value};
  }

  // A result for the caller, and where the kernel's goes.
  Tensor allocate(const PlannedTensor& planned, c10::Device device,
                  const ArgumentTensors& arguments) {
    switch (planned.kind) {
      case PlannedTensor::Kind::Undefined:
        return Tensor();
      case PlannedTensor::Kind::Argument:
        return arguments.onDevice(planned.argument_index);
      case PlannedTensor::Kind::New:
        Tensor result = planned.allocate(device);
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
        for (int64_t i = 0; i < value.plain.toInt(); ++i) {
          list.push_back(tensors[slots_[next++]]);
        }
        return list;
      }
      case Kind::OptionalTensorList: {
        c10::List<std::optional<Tensor>> list;
        for (int64_t i = 0; i < value.plain.toInt(); ++i) {
          const size_t slot = slots_[next++];
          list.push_back(slot == kNoTensor ? std::optional<Tensor>() : tensors[slot]);
        }
        return list;
      }
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  // Whether all results are single tensors that the kernel can write as they are.
  static bool areAllNew(const std::vector<PlannedResult>& results) {
    return std::all_of(results.begin(), results.end(), [](const PlannedResult& result) {
      const PlannedTensor& planned = result.tensors.front();
      return !result.is_list && planned.kind == PlannedTensor::Kind::New && !planned.is_conj &&
             !planned.is_neg;
    });
  }

  // Stores what the kernel returned for one result. Returns the destination after those it took.
  static const TensorAlias* store(const PlannedResult& planned, const c10::IValue& result,
                                  const TensorAlias* destination) {
    if (!planned.is_list) {
      return storeTensor(planned.tensors.front(), result.toTensor(), destination);
    }
    const auto elements = result.toListRef();
    TORCH_CHECK(elements.size() == planned.tensors.size(), "expected a list of ",
                planned.tensors.size(), " tensors as in an earlier call, got ", elements.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      destination = storeTensor(planned.tensors[i], elements[i].toTensor(), destination);
    }
    return destination;
  }

  static const TensorAlias* storeTensor(const PlannedTensor& planned, const Tensor& result,
                                        const TensorAlias* destination) {
    if (planned.kind != PlannedTensor::Kind::New) {
      return destination;
    }
    planned.check(result);
    Tensor target = destination->tensor();
    at::native::copy_(target, result, /*non_blocking=*/false);
    return destination + 1;
  }

  static constexpr size_t kNoTensor = static_cast<size_t>(-1);

  std::optional<c10::OperatorHandle> op_;
  const FallbackOperator* known_ = nullptr;
  std::shared_ptr<const ResultPlan> plan_;
  std::vector<Value> values_;
  std::vector<size_t> slots_;  // per tensor argument or element, its place in `aliases_`
  std::vector<TensorAlias> aliases_;
  std::vector<TensorAlias> destinations_;  // per PlannedTensor::Kind::New of the plan
  EnqueuedCall* next_finished_ = nullptr;
};

// Note [Finished calls]
// A calling thread allocates what a call needs, and a worker is done with it. If workers freed it,
// both would meet at the lock of malloc's arena, with a system call each time. So finished calls
// are kept as they are, and the next calls use their memory.
class FinishedCalls {
 public:
  // docs: finished-calls
  // A finished call, or a new one: to be prepared.
  static EnqueuedCall* take() {
    thread_local OwnList own;
    if (own.first == nullptr) {
      own.first = all_.exchange(nullptr, std::memory_order_acquire);
    }
    if (own.first == nullptr) {
      return new EnqueuedCall;
    }
    return std::exchange(own.first, own.first->next_finished_);
  }

  // From any thread. The call keeps no memory of the device and no tensor.
  static void giveBack(EnqueuedCall* call) {
    if (call->aliases_.capacity() > kMaxKeptTensors) {
      delete call;
      return;
    }
    call->next_finished_ = all_.load(std::memory_order_relaxed);
    while (!all_.compare_exchange_weak(call->next_finished_, call, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    }
  }
  // docs: end

 private:
  // Taken from the others all at once, so that nobody takes a call that has been back meanwhile.
  struct OwnList {
    ~OwnList() {
      while (first != nullptr) {
        giveBack(std::exchange(first, first->next_finished_));
      }
    }
    EnqueuedCall* first = nullptr;
  };

  static constexpr size_t kMaxKeptTensors = 128;  // 20 KB

  static inline std::atomic<EnqueuedCall*> all_ = nullptr;
};

struct GiveBack {
  void operator()(EnqueuedCall* call) const { FinishedCalls::giveBack(call); }
};

using CallPtr = std::unique_ptr<EnqueuedCall, GiveBack>;

void resizeArguments(c10::ArrayRef<c10::IValue> arguments,
                     const std::vector<PlannedResize>& resizes) {
  if (C10_LIKELY(resizes.empty())) {
    return;
  }
  c10::SmallVector<Tensor, 8> tensors;
  visitTensors(arguments, [&](const Tensor& tensor) {
    const auto is_same = [&](const Tensor& other) { return other.is_same(tensor); };
    if (isOpenReg(tensor) && std::none_of(tensors.begin(), tensors.end(), is_same)) {
      tensors.push_back(tensor);
    }
  });
  for (const PlannedResize& resize : resizes) {
    const Tensor& tensor = tensors[resize.argument_index];
    const size_t nbytes = at::detail::computeStorageNbytes(
        resize.sizes, resize.strides, tensor.itemsize(), tensor.storage_offset());
    if (nbytes > tensor.storage().nbytes()) {
      at::native::resize_bytes_nocuda(tensor.storage(), nbytes);
    }
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(resize.sizes, resize.strides);
  }
}

// The closure: small, as the queue stores it in place.
struct RunCall {
  CallPtr call;

  void operator()() const { call->run(); }
};

}  // namespace

orKernel describeCallOnStream(const char* name) { return describeOp<RunCall>(name); }

void callOnStream(const FallbackOperator& known, const c10::OperatorHandle& op,
                  std::shared_ptr<const ResultPlan> plan, c10::Device device,
                  torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  resizeArguments(arguments, (*plan)->resizes);
  RunCall run{CallPtr(FinishedCalls::take())};
  torch::jit::Stack results;
  run.call->prepare(known, op, std::move(plan), device, arguments, &results);
  launchOp(known.kernel(), device, std::move(run));
  torch::jit::drop(*stack, arguments.size());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

}  // namespace at::openreg
