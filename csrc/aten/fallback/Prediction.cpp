#include "csrc/aten/fallback/Prediction.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include "csrc/aten/cpu/KernelWarnings.h"
#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/fallback/Verification.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/aten/launch/FirstPlaces.h"
#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {
namespace {

// Of all operands together. A kernel whose work grows with the square of their size then takes
// milliseconds.
constexpr size_t kSmallBytes = size_t{16} << 10;

// The arguments for a kernel of another device: `tensors` are parallel to the call's tensors.
torch::jit::Stack argumentsFor(BoxedCall& call, c10::ArrayRef<Tensor> tensors) {
  return argumentsOf(call.values(), call.places(), tensors);
}

// Those among `tensors` that stand for tensors of the device.
std::vector<Tensor> deviceOnes(const BoxedCall& call, c10::ArrayRef<Tensor> tensors) {
  std::vector<Tensor> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (isOpenReg(*call.tensors()[i])) {
      found.push_back(tensors[i]);
    }
  }
  return found;
}

std::shared_ptr<CallPlan> planFor(const BoxedCall& call, c10::ArrayRef<Tensor> tensors,
                                  const torch::jit::Stack& results, c10::DeviceType device) {
  const std::vector<Tensor> aliases = deviceOnes(call, tensors);
  std::vector<Tensor> originals;
  for (const Tensor* tensor : call.deviceTensors()) {
    originals.push_back(*tensor);
  }
  return planOf(originals, aliases, results, device);
}

// --- On dummies

void runOnDummies(BoxedCall& call, DummyForm form, int value,
                  c10::function_ref<void(c10::ArrayRef<Tensor>, const torch::jit::Stack&)> look) {
  const at::RecordFunctionGuard unrecorded(/*is_enabled=*/false);
  trialRun(call.tensors(), /*output_count=*/0, form, value, [&](Tensor* dummies) {
    std::vector<Tensor> tensors(dummies, dummies + call.tensors().size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (call.tensors()[i]->defined() && !isOpenReg(*call.tensors()[i])) {
        tensors[i] = *call.tensors()[i];  // a number on the host
      }
    }
    torch::jit::Stack stack = argumentsFor(call, tensors);
    for (size_t i = 0; i < stack.size(); ++i) {
      if (isGenerator(call.schema().arguments()[i])) {
        stack[i] = at::detail::createCPUGenerator();
      }
    }
    call.op().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    look(tensors, stack);
  });
}

std::shared_ptr<CallPlan> planOnDummies(BoxedCall& call) {
  std::shared_ptr<CallPlan> plan;
  for (const int value : {0, 1}) {
    try {
      WarningRecorder recorder(WarningRecorder::Mode::Record);
      runOnDummies(call, DummyForm::OwnMemory, value,
                   [&](c10::ArrayRef<Tensor> dummies, const torch::jit::Stack& results) {
                     plan = planFor(call, dummies, results, c10::DeviceType::CPU);
                   });
      plan->warnings = recorder.take();
      return plan;
    } catch (const std::exception&) {  // of the kernel, which may be one in Python
      plan = nullptr;
    }
  }
  return nullptr;
}

Prediction predictOnDummies(BoxedCall& call) {
  std::shared_ptr<CallPlan> plan = planOnDummies(call);
  if (plan == nullptr || plan->warnings.empty()) {
    return {std::move(plan), {}};
  }
  // What warns a second time warns each time.
  std::vector<c10::Warning> warnings = std::move(plan->warnings);
  return {planOnDummies(call), std::move(warnings)};
}

// Whether the CPU kernel may take arguments of these kinds; `warnings` are those of a run that
// shows it.
bool mayTakeKinds(BoxedCall& call, std::vector<c10::Warning>& warnings) {
  try {
    WarningRecorder recorder(WarningRecorder::Mode::Record);
    runOnDummies(call, DummyForm::SmallSizes, 0, [](const auto&, const auto&) {});
    warnings = recorder.take();
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const std::exception&) {  // due to the small sizes or the zeros, maybe
  }
  return true;
}

// --- On meta tensors

// Tensors without memory of the operands' sizes, strides and overlaps.
std::vector<Tensor> metaTensors(const BoxedCall& call) {
  std::vector<Tensor> made;
  std::vector<Storage> storages;
  FirstPlaces<const void*> places;
  made.reserve(call.tensors().size());
  for (const Tensor* tensor : call.tensors()) {
    if (!isOpenReg(*tensor)) {
      made.push_back(*tensor);
      continue;
    }
    const TensorImpl& original = *tensor->unsafeGetTensorImpl();
    const Storage& memory = original.unsafe_storage();
    const size_t place = places.findOrAdd(identityOf(memory), storages.size());
    if (place == storages.size()) {
      storages.emplace_back(Storage::use_byte_size_t(), memory.nbytes(),
                            c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
    }
    auto impl = c10::make_intrusive<TensorImpl>(
        Storage(storages[place]), c10::DispatchKeySet(c10::DispatchKey::Meta), original.dtype());
    impl->set_sizes_and_strides(tensor->sizes(), tensor->strides(), tensor->storage_offset());
    impl->_set_conj(tensor->is_conj());
    impl->_set_neg(tensor->is_neg());
    if (original.is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
    made.emplace_back(std::move(impl));
  }
  return made;
}

class DropWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// The thread state of a Meta kernel: modes of the program do not see its calls.
class MetaScope {
 public:
  MetaScope() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(
        at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~MetaScope() { at::impl::PythonTorchFunctionTLS::set_disabled_state(functions_); }
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

 private:
  const CpuKernelScope below_autograd_;
  const c10::impl::ExcludeDispatchKeyGuard without_modes_{c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
       c10::DispatchKey::PythonDispatcher, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
  const at::impl::TorchFunctionDisabledState functions_ =
      at::impl::PythonTorchFunctionTLS::get_disabled_state();
  const at::RecordFunctionGuard unrecorded_{/*is_enabled=*/false};
  DropWarnings dropped_;
  const c10::WarningUtils::WarningHandlerGuard guard_{&dropped_};
};

// The CPU's convolutions of images have a channels-last result if the images or the filters are,
// the first two operands. The Meta kernel's result is contiguous.
void giveFormatOfOperands(c10::IValue& result, c10::ArrayRef<Tensor> operands) {
  const auto is_images = [](const Tensor& one) { return one.dim() == 4 && isChannelsLast(one); };
  if (is_images(operands[0]) || is_images(operands[1])) {
    result = result.toTensor().contiguous(c10::MemoryFormat::ChannelsLast);
  }
}

// What the Meta kernel describes. Errors: those of the kernel.
std::shared_ptr<CallPlan> describeOnMeta(BoxedCall& call) {
  const std::vector<Tensor> tensors = metaTensors(call);
  torch::jit::Stack stack = argumentsFor(call, tensors);
  for (c10::IValue& value : stack) {
    if (value.isDevice()) {
      value = c10::Device(kMeta);
    } else if (value.isGenerator()) {
      value = c10::IValue();
    }
  }
  const MetaScope scope;
  call.op().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  if (call.known().isConvolution()) {
    giveFormatOfOperands(stack.back(), tensors);
  }
  return planFor(call, tensors, stack, c10::DeviceType::Meta);
}

std::shared_ptr<CallPlan> planOnMeta(BoxedCall& call) {
  if (!call.known().isDescribedByMeta(call.tensors())) {
    return nullptr;
  }
  try {
    return describeOnMeta(call);
  } catch (const std::exception&) {  // the call's own run says what is wrong, if something is
    return nullptr;
  }
}

size_t bytesOf(const BoxedCall& call) {
  size_t sum = 0;
  for (const Tensor* tensor : call.deviceTensors()) {
    sum += tensor->storage().nbytes();
  }
  return sum;
}

size_t bytesOf(const CallPlan& plan) {
  size_t sum = 0;
  for (const PlannedResult& result : plan.results) {
    for (const PlannedTensor& tensor : result.tensors) {
      sum += c10::multiply_integers(tensor.sizes) * c10::elementSize(tensor.dtype);
    }
  }
  return sum;
}

Prediction predictOnMeta(BoxedCall& call) {
  std::shared_ptr<CallPlan> plan = planOnMeta(call);
  if (plan == nullptr) {
    return {};
  }
  if (call.deviceTensors().empty()) {
    // There are only numbers: the kernel itself decides, if its results are small.
    return bytesOf(*plan) <= kSmallBytes ? predictOnDummies(call) : Prediction{std::move(plan), {}};
  }
  std::vector<c10::Warning> warnings;
  if (!mayTakeKinds(call, warnings)) {
    return {};
  }
  if (!warnings.empty()) {
    mayTakeKinds(call, plan->warnings);  // what warns a second time warns each time
  }
  return {std::move(plan), std::move(warnings)};
}

// --- Verification

// Whether two plans have results of the same metadata. Strides of a tensor without elements, and of
// a dimension with one, do not matter.
bool areAlike(const PlannedTensor& one, const PlannedTensor& other) {
  if (one.kind != other.kind || one.argument_index != other.argument_index ||
      one.dtype != other.dtype || one.is_conj != other.is_conj || one.is_neg != other.is_neg ||
      one.sizes != other.sizes) {
    return false;
  }
  if (c10::multiply_integers(one.sizes) == 0) {
    return true;
  }
  for (size_t i = 0; i < one.sizes.size(); ++i) {
    if (one.sizes[i] != 1 && one.strides[i] != other.strides[i]) {
      return false;
    }
  }
  return true;
}

bool areAlike(const PlannedResult& one, const PlannedResult& other) {
  return one.is_list == other.is_list &&
         std::equal(one.tensors.begin(), one.tensors.end(), other.tensors.begin(),
                    other.tensors.end(),
                    [](const auto& first, const auto& second) { return areAlike(first, second); });
}

bool areAlike(const CallPlan& one, const CallPlan& other) {
  return one.kind == other.kind && one.resizes == other.resizes &&
         std::equal(one.results.begin(), one.results.end(), other.results.begin(),
                    other.results.end(),
                    [](const auto& first, const auto& second) { return areAlike(first, second); });
}

std::string textOf(const CallPlan& plan) {
  if (plan.kind == CallPlan::Kind::OnHost) {
    return "views, or other arguments that are resized";
  }
  std::ostringstream text;
  for (const PlannedResult& result : plan.results) {
    for (const PlannedTensor& tensor : result.tensors) {
      text << (tensor.kind == PlannedTensor::Kind::New ? c10::toString(tensor.dtype) : "argument")
           << IntArrayRef(tensor.sizes) << IntArrayRef(tensor.strides) << ' ';
    }
  }
  for (const PlannedResize& resize : plan.resizes) {
    text << "resized to " << IntArrayRef(resize.sizes) << IntArrayRef(resize.strides) << ' ';
  }
  return text.str();
}

// With OPENREG_FALLBACK_VERIFY=1: the Meta kernel must describe what the CPU kernel returns.
void verify(BoxedCall& call, const CallPlan& plan) {
  const std::shared_ptr<CallPlan> other = planOnMeta(call);
  TORCH_CHECK(other == nullptr || areAlike(plan, *other),
              "OPENREG_FALLBACK_VERIFY: expected the Meta kernel of ", call.known().name(),
              " to describe the CPU kernel's results ", textOf(plan), "got ",
              other == nullptr ? "" : textOf(*other),
              "; is it missing in the fact other_metadata?");
}

}  // namespace

namespace {

std::atomic<DescribeCall> description{nullptr};
std::atomic<ComposeCall> composition{nullptr};

bool arePlain(c10::ArrayRef<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor* tensor) { return !tensor->defined() || isPlain(*tensor); });
}

}  // namespace

void setDescription(DescribeCall describe, ComposeCall compose) {
  description = describe;
  composition = compose;
}

bool composeSkipped(BoxedCall& call, torch::jit::Stack* stack) {
  const ComposeCall compose = composition.load();
  return compose != nullptr && compose(call, stack);
}

std::shared_ptr<const CallPlan> planSkipped(BoxedCall& call) {
  const DescribeCall describe = description.load();
  std::shared_ptr<CallPlan> plan = describe == nullptr ? nullptr : describe(call);
  if (plan == nullptr && arePlain(call.tensors()) && call.known().hasMetaKernel()) {
    plan = describeOnMeta(call);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(plan != nullptr && plan->kind == CallPlan::Kind::OnStream,
                              call.known().name(),
                              ": its kernel is skipped, and without it the sizes of its results "
                              "are unknown; register a kernel for them with "
                              "torch.library.register_fake");
  return plan;
}

Prediction predictPlan(BoxedCall& call) {
  if (!call.known().takesDummies()) {
    return {};
  }
  const bool is_small = !call.deviceTensors().empty() && bytesOf(call) <= kSmallBytes;
  Prediction predicted = is_small ? predictOnDummies(call) : predictOnMeta(call);
  if (is_small && isVerifying() && predicted.plan != nullptr) {
    verify(call, *predicted.plan);
  }
  // Views are made on the calling thread.
  if (predicted.plan != nullptr && predicted.plan->kind != CallPlan::Kind::OnStream) {
    return {};
  }
  return predicted;
}

}  // namespace at::openreg
