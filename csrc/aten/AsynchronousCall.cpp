#include "csrc/aten/AsynchronousCall.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/copy_native.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "csrc/aten/FallbackArguments.h"
#include "csrc/aten/OpLaunch.h"
#include "csrc/aten/TensorAlias.h"
#include "csrc/random/Generator.h"

namespace at::openreg {
namespace {

// A boxed call on its way to the worker. Each tensor travels once, however often it is passed, so
// that the kernel sees what is the same tensor as the same.
class EnqueuedCall {
 public:
  EnqueuedCall(const FallbackOperator& known, const c10::OperatorHandle& op, c10::Device device,
               c10::ArrayRef<c10::IValue> arguments)
      : op_(op), known_(known) {
    const auto& schema = op.schema();
    values_.reserve(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      values_.push_back(hold(arguments[i], schema.arguments()[i], device));
    }
  }

  // Allocates the results, puts them on the stack, and remembers where the kernel's go.
  void allocateResults(const std::vector<PlannedResult>& plan, c10::Device device,
                       torch::jit::Stack* stack) {
    results_.reserve(plan.size());
    for (const PlannedResult& planned : plan) {
      std::vector<Tensor> tensors;
      Destinations destinations{planned.is_list, {}};
      for (const PlannedTensor& one : planned.tensors) {
        tensors.push_back(resultOf(one, device));
        destinations.tensors.emplace_back(one, one.kind == PlannedTensor::Kind::New
                                                   ? TensorAlias(tensors.back())
                                                   : TensorAlias());
      }
      results_.push_back(std::move(destinations));
      if (planned.is_list) {
        stack->emplace_back(c10::List<Tensor>(tensors));
      } else {
        stack->emplace_back(std::move(tensors.front()));
      }
    }
    device_tensors_.clear();
  }

  // On the worker, each time the call runs; see Note [Kernels run again] in openreg/stream.h.
  void run() const {
    torch::jit::Stack stack;
    stack.reserve(values_.size());
    const std::vector<Tensor> tensors = tensorsOf(aliases_);
    size_t next = 0;
    for (const Value& value : values_) {
      stack.push_back(release(value, tensors, next));
    }
    constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
    if (known_.outVariant().has_value() && areAllNew()) {
      for (const Destinations& result : results_) {
        stack.emplace_back(result.tensors.front().second.tensor());
      }
      known_.outVariant()->redispatchBoxed(kCpu, &stack);
      return;
    }
    op_.redispatchBoxed(kCpu, &stack);
    for (size_t i = 0; i < results_.size(); ++i) {
      store(results_[i], stack[i]);
    }
  }

 private:
  enum class Kind : uint8_t { Plain, Tensor, TensorList, OptionalTensorList };

  // For Kind::Plain the value, for lists their length; tensors are in `slots_`, in order.
  struct Value {
    Kind kind;
    c10::IValue plain;
  };

  struct Destinations {
    bool is_list;
    std::vector<std::pair<PlannedTensor, TensorAlias>> tensors;
  };

  Value hold(const c10::IValue& value, const c10::Argument& argument, c10::Device device) {
    if (value.isTensor()) {
      slots_.push_back(slotOf(value.toTensor()));
      return {Kind::Tensor, {}};
    }
    if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto elements = value.toListRef();
      for (const c10::IValue& element : elements) {
        slots_.push_back(element.isNone() ? kNoTensor : slotOf(element.toTensor()));
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

  size_t slotOf(const Tensor& tensor) {
    const TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const auto seen = std::find(impls_.begin(), impls_.end(), impl);
    if (seen != impls_.end()) {
      return static_cast<size_t>(seen - impls_.begin());
    }
    impls_.push_back(impl);
    aliases_.emplace_back(tensor);
    if (isOpenReg(tensor)) {
      device_tensors_.push_back(tensor);
    }
    return impls_.size() - 1;
  }

  Tensor resultOf(const PlannedTensor& planned, c10::Device device) const {
    switch (planned.kind) {
      case PlannedTensor::Kind::Undefined:
        return Tensor();
      case PlannedTensor::Kind::Argument:
        return device_tensors_.at(planned.argument_index);
      case PlannedTensor::Kind::New:
        return planned.allocate(device);
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
  bool areAllNew() const {
    const auto is_new = [](const PlannedTensor& planned) {
      return planned.kind == PlannedTensor::Kind::New && !planned.is_conj && !planned.is_neg;
    };
    return std::all_of(results_.begin(), results_.end(), [&](const Destinations& result) {
      return !result.is_list && is_new(result.tensors.front().first);
    });
  }

  static void store(const Destinations& destinations, const c10::IValue& result) {
    if (!destinations.is_list) {
      storeTensor(destinations.tensors.front(), result.toTensor());
      return;
    }
    const auto elements = result.toListRef();
    TORCH_CHECK(elements.size() == destinations.tensors.size(), "expected a list of ",
                destinations.tensors.size(), " tensors as in an earlier call, got ",
                elements.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      storeTensor(destinations.tensors[i], elements[i].toTensor());
    }
  }

  static void storeTensor(const std::pair<PlannedTensor, TensorAlias>& destination,
                          const Tensor& result) {
    const auto& [planned, alias] = destination;
    if (planned.kind == PlannedTensor::Kind::New) {
      planned.check(result);
      Tensor target = alias.tensor();
      at::native::copy_(target, result, /*non_blocking=*/false);
    }
  }

  static constexpr size_t kNoTensor = static_cast<size_t>(-1);

  c10::OperatorHandle op_;
  const FallbackOperator& known_;
  std::vector<Value> values_;
  std::vector<size_t> slots_;  // per tensor argument or element, its place in `aliases_`
  std::vector<TensorAlias> aliases_;
  std::vector<Destinations> results_;
  // For the calling thread only.
  c10::SmallVector<const TensorImpl*, 8> impls_;  // parallel to `aliases_`
  std::vector<Tensor> device_tensors_;
};

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
  std::unique_ptr<const EnqueuedCall> call;
  int num_threads;

  void operator()() const {
    enterWorkerEnvironment(num_threads);
    call->run();
  }
};

}  // namespace

orKernel describeCallOnStream(const char* name) {
  return c10::openreg::describeKernel<RunCall>(name);
}

void callOnStream(const FallbackOperator& known, const c10::OperatorHandle& op,
                  const CallPlan& plan, c10::Device device, torch::jit::Stack* stack) {
  const auto arguments = argumentsOnStack(op.schema(), *stack);
  resizeArguments(arguments, plan.resizes);
  auto call = std::make_unique<EnqueuedCall>(known, op, device, arguments);
  torch::jit::Stack results;
  call->allocateResults(plan.results, device, &results);
  c10::openreg::launchKernel(known.kernel(), c10::openreg::getCurrentOpenRegStream(device.index()),
                             RunCall{std::move(call), at::get_num_threads()});
  torch::jit::drop(*stack, arguments.size());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

}  // namespace at::openreg
