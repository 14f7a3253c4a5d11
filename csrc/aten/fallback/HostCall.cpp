#include "csrc/aten/fallback/HostCall.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/List.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <openreg/memory.h>

#include <cstring>
#include <iterator>
#include <optional>
#include <string>

#include "csrc/aten/cpu/ErrorWords.h"
#include "csrc/aten/cpu/KernelWarnings.h"
#include "csrc/aten/cpu/SubByteIntegers.h"
#include "csrc/aten/cpu/TrialRun.h"
#include "csrc/aten/fallback/CallAccesses.h"
#include "csrc/aten/launch/EmptyTensor.h"
#include "csrc/aten/layouts/Components.h"
#include "csrc/aten/refusals/Refusals.h"
#include "csrc/memory/StorageResize.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Launch.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {
namespace {

using c10::openreg::getCurrentOpenRegStream;
using c10::openreg::kDeviceType;
using c10::openreg::OpenRegStream;
using c10::openreg::TraceScope;
using c10::openreg::WorkDescription;

Tensor viewOf(const Tensor& original, const Tensor& result) {
  auto impl = c10::make_intrusive<TensorImpl>(TensorImpl::VIEW, Storage(original.storage()),
                                              original.key_set(), result.dtype());
  impl->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
  impl->_set_conj(result.is_conj());
  impl->_set_neg(result.is_neg());
  return Tensor(std::move(impl));
}

const void* addressSeenByKernels(const Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.storage().data());
  return data == nullptr ? nullptr : data + kernelOffset();
}

}  // namespace

// docs: fallback-run
void HostCall::run() {
  takeArguments();
  callCpuKernel();
  takeOverResizes();
  replaceResults();
}
// docs: end

std::shared_ptr<const CallPlan> HostCall::runAndLearn(bool has_warned_before) {
  takeArguments();
  std::vector<c10::Warning> warnings;
  {
    WarningRecorder recorder(WarningRecorder::Mode::Forward);
    callCpuKernel();
    warnings = recorder.take();
  }
  const std::shared_ptr<CallPlan> plan = planOfResults();
  takeOverResizes();
  replaceResults();
  plan->warnings = std::move(warnings);
  if (plan->kind == CallPlan::Kind::OnStream && !plan->warnings.empty() && !has_warned_before) {
    plan->kind = CallPlan::Kind::WarnedOnce;
  }
  return plan;
}

std::shared_ptr<CallPlan> HostCall::planOfResults() const {
  std::vector<Tensor> originals;
  std::vector<Tensor> aliases;
  for (const auto& [original, alias] : aliases_) {
    originals.push_back(original);
    aliases.push_back(alias);
  }
  const c10::ArrayRef<c10::IValue> results(*stack_);
  return planOf(originals, aliases, results.slice(results.size() - schema_.returns().size()),
                c10::DeviceType::CPU);
}

// Waits for the arguments, and replaces them by what the CPU kernel takes.
void HostCall::takeArguments() {
  waits_on_cuda_ = call_.waitsOnCuda();
  if (waits_on_cuda_) {
    waitForCurrentStream(device_, known_.name().c_str());
  } else {
    // See Note [What orders work].
    getCurrentOpenRegStream(device_.index()).synchronize(known_.name().c_str());
  }
  operands_.reserve(call_.tensors().size());
  for (const Tensor* tensor : call_.tensors()) {
    operands_.push_back(aliasOf(*tensor));
  }
  call_.replaceGenerators([&](const std::optional<Generator>& generator) {
    return engineForHost(generator, device_.index());
  });
  torch::jit::Stack arguments = argumentsOf(call_.values(), call_.places(), operands_);
  torch::jit::drop(*stack_, arguments.size());
  stack_->insert(stack_->end(), std::make_move_iterator(arguments.begin()),
                 std::make_move_iterator(arguments.end()));
  passOnRequiresGrad();
}

Tensor HostCall::aliasOf(const Tensor& tensor) {
  if (!isOpenReg(tensor)) {
    return tensor;
  }
  if (const auto place = originals_.find(tensor.unsafeGetTensorImpl())) {
    return aliases_[*place].second;
  }
  if (!isPlain(tensor)) {
    std::vector<Tensor> components = componentsOf(tensor);
    for (Tensor& component : components) {
      component = aliasOf(component);
    }
    return keepAlias(tensor, assemble(tensor, components));
  }
  const size_t first = storages_.findOrAdd(identityOf(tensor.storage()), aliases_.size());
  if (first < aliases_.size()) {
    return keepAlias(tensor, hostViewOnStorageOf(aliases_[first].second, tensor));
  }
  Tensor alias = hostView(tensor);
  // A kernel may resize its result. The alias then allocates from this allocator.
  StorageImpl* storage = alias.storage().unsafeGetStorageImpl();
  storage->set_allocator(c10::GetCPUAllocator());
  storage->set_resizable(true);
  return keepAlias(tensor, std::move(alias));
}

Tensor HostCall::keepAlias(const Tensor& tensor, Tensor alias) {
  originals_.add(tensor.unsafeGetTensorImpl(), aliases_.size());
  aliases_.emplace_back(tensor, std::move(alias));
  return aliases_.back().second;
}

// Kernels of sparse matrices compute values for their backward only if an argument requires grad.
void HostCall::passOnRequiresGrad() {
  if (cpu_key_ == c10::DispatchKey::CPU || !c10::GradMode::is_enabled()) {
    return;
  }
  for (auto& [original, alias] : aliases_) {
    if (original.requires_grad()) {
      alias.set_requires_grad(true);
    }
  }
}

namespace {

// Whether repeat_interleave has found that `output_size` is not the sum of the repeats. No dummies
// have that sum.
bool isOfSizeInData(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  return text.starts_with("allocated size does not match required size");
}

}  // namespace

void HostCall::checkHasKernel() const {
  for (const auto key : {cpu_key_, c10::DispatchKey::CompositeExplicitAutograd,
                         c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
                         c10::DispatchKey::CompositeImplicitAutograd}) {
    if (op_.hasKernelForDispatchKey(key)) {
      return;
    }
  }
  const std::string advice = c10::str(
      "neither ", kDeviceType, " nor the CPU has a kernel for it. Register one with ",
      "torch.library.impl(\"", schema_.name(), "\", \"", kDeviceType, "\") or TORCH_LIBRARY_IMPL.");
  if (!c10::openreg::servesCuda()) {
    C10_THROW_ERROR(NotImplementedError,
                    c10::str("Could not run '", known_.name(), "' on ", device_, ": ", advice));
  }
  std::string backend = c10::toString(cpu_key_);
  backend.replace(backend.rfind("CPU"), 3, "CUDA");
  C10_THROW_ERROR(NotImplementedError, c10::str(textWithoutKernel(op_.operator_name(), backend),
                                                "\nOn ", device_, ", ", advice));
}

void HostCall::callCpuKernel() {
  const HostKernelScope scope;
  // Collectives write tensors that their schemas do not call mutable.
  TORCH_CHECK_NOT_IMPLEMENTED(op_.operator_name().getNamespace() != "c10d", known_.name(),
                              ": expected dense tensors, got sparse or quantized ones on ",
                              device_);
  checkHasKernel();
  try {
    const TraceScope work(getCurrentOpenRegStream(device_.index()), known_.kernel().name);
    op_.redispatchBoxed(c10::DispatchKeySet(cpu_key_), stack_);
  } catch (const c10::Error& error) {
    if (c10::openreg::servesCuda() && !waits_on_cuda_ &&
        (isOfSizeInData(error) || acceptsDummies())) {
      failOnStream(std::current_exception());
    }
    rethrowInOwnWords(error);
  }
}

// See Note [Errors of data in a call on the host].
bool HostCall::acceptsDummies() const {
  if (!known_.takesDummies()) {
    return false;
  }
  std::vector<const Tensor*> tensors;
  for (const Tensor& operand : operands_) {
    if (operand.defined() && !isPlain(operand)) {
      return false;
    }
    tensors.push_back(&operand);
  }
  const auto run = [&](Tensor* dummies) {
    torch::jit::Stack stack =
        argumentsOf(call_.values(), call_.places(), ArrayRef<Tensor>(dummies, tensors.size()));
    for (c10::IValue& value : stack) {
      if (value.isGenerator()) {
        value = value.toGenerator().clone();  // no number may be drawn for dummies
      }
    }
    op_.redispatchBoxed(c10::DispatchKeySet(cpu_key_), &stack);
  };
  for (const int value : {0, 1}) {
    try {
      trialRun(tensors, /*output_count=*/0, DummyForm::OwnMemory, value, run);
      return true;
    } catch (const c10::Error&) {
    }
  }
  return false;
}

// Raises the exception as one of the kernel, had it been launched.
void HostCall::failOnStream(std::exception_ptr exception) const {
  const OpenRegStream stream = getCurrentOpenRegStream(device_.index());
  c10::openreg::launchKernel(known_.throwingKernel(), stream,
                             FallbackOperator::Rethrow{std::move(exception)});
  stream.synchronize(known_.name().c_str());
  TORCH_INTERNAL_ASSERT(false, "a kernel that throws has not failed");
}

// Gives an openreg tensor the sizes of its alias, and the contents if the alias outgrew the memory.
void HostCall::takeOverResize(size_t index) {
  const auto& [original, alias] = aliases_[index];
  if (!isPlain(original)) {
    assembleInto(original, alias, deviceComponents(alias));
    return;
  }
  const bool has_moved = alias.storage().data() != addressSeenByKernels(original);
  if (!has_moved && alias.sizes() == original.sizes() && alias.strides() == original.strides()) {
    return;
  }
  if (has_moved) {
    c10::openreg::resizeStorage(original.storage(), alias.storage().nbytes());
  }
  original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(),
                                                        alias.storage_offset());
  const Verdict verdict = observeResult(known_, device_, original);
  if (!has_moved || verdict == Verdict::Skip) {
    return;
  }
  // The whole memory, because another result may view what the kernel added.
  copyMemory(original, alias);
}

// Copies the memory of a CPU tensor to that of an openreg tensor of the same size.
void HostCall::copyMemory(const Tensor& to, const Tensor& from) const {
  const size_t nbytes = from.storage().nbytes();
  // The allocation may reuse memory that earlier work of the stream still uses.
  const OpenRegStream stream = getCurrentOpenRegStream(device_.index());
  stream.synchronize(known_.name().c_str());
  const TraceScope work(stream, WorkDescription::copy(orMemcpyHostToDevice, nbytes));
  std::memcpy(hostView(to).storage().mutable_data(), from.storage().data(), nbytes);
  known_.copiedBytes().fetch_add(static_cast<int64_t>(nbytes), std::memory_order_relaxed);
}

void HostCall::takeOverResizes() {
  for (size_t i = 0; i < aliases_.size(); ++i) {
    const Tensor& alias = aliases_[i].second;
    alias_places_.findOrAdd(alias.unsafeGetTensorImpl(), i);
    if (isPlain(alias)) {
      alias_storages_.findOrAdd(identityOf(alias.storage()), i);
    }
  }
  for (size_t i = 0; i < aliases_.size(); ++i) {
    takeOverResize(i);
  }
}

void HostCall::replaceResults() {
  for (size_t i = stack_->size() - schema_.returns().size(); i < stack_->size(); ++i) {
    c10::IValue& value = (*stack_)[i];
    if (value.isTensor()) {
      value = deviceTensor(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> tensors = value.toTensorVector();
      for (Tensor& tensor : tensors) {
        tensor = deviceTensor(tensor);
      }
      value = c10::List<Tensor>(tensors);
    }
  }
}

// The openreg tensor for a CPU tensor: an argument, a view of one, or a new tensor.
Tensor HostCall::deviceTensor(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) {
    return tensor;
  }
  if (const auto place = alias_places_.find(tensor.unsafeGetTensorImpl())) {
    return aliases_[*place].first;
  }
  if (!isPlain(tensor)) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() != kMkldnn, known_.name(),
                                ": its result has layout ", tensor.layout(),
                                ", which devices of type ", kDeviceType, " do not support");
    return assemble(tensor, deviceComponents(tensor));
  }
  if (const auto place = alias_storages_.find(identityOf(tensor.storage()))) {
    return viewOf(aliases_[*place].first, tensor);
  }
  return moveToDevice(tensor);
}

// The components of a CPU tensor as openreg tensors: those of an argument, views, or new tensors.
std::vector<Tensor> HostCall::deviceComponents(const Tensor& tensor) {
  std::vector<Tensor> components = componentsOf(tensor);
  for (Tensor& component : components) {
    component = deviceTensor(component);
  }
  return components;
}

// `result` is not used afterwards, so it needs no intermediate copy.
Tensor HostCall::moveToDevice(const Tensor& result) const {
  Tensor moved =
      at::has_internal_overlap(result) == at::MemOverlap::Yes
          ? emptyOnCurrentDevice(result.sizes(), result.scalar_type())
          : emptyStridedOnCurrentDevice(result.sizes(), result.strides(), result.scalar_type());
  moved.unsafeGetTensorImpl()->_set_conj(result.is_conj());
  moved.unsafeGetTensorImpl()->_set_neg(result.is_neg());
  if (result.numel() > 0 && observeResult(known_, device_, moved) == Verdict::Run) {
    // The allocation may reuse memory that earlier work of the stream still uses.
    const OpenRegStream stream = getCurrentOpenRegStream(device_.index());
    stream.synchronize(known_.name().c_str());
    const TraceScope work(stream, WorkDescription::copy(orMemcpyHostToDevice, result.nbytes()));
    copyable(hostView(moved)).copy_(copyable(result));
    known_.copiedBytes().fetch_add(static_cast<int64_t>(result.nbytes()),
                                   std::memory_order_relaxed);
  }
  return moved;
}

}  // namespace at::openreg
