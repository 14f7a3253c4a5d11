#include "csrc/aten/fallback/HostCall.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/List.h>
#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <openreg/memory.h>

#include <utility>
#include <vector>

#include "csrc/aten/fallback/BoxedArguments.h"
#include "csrc/aten/kernel/EmptyTensor.h"
#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {
namespace {

using c10::openreg::getCurrentOpenRegStream;
using c10::openreg::HostWork;
using c10::openreg::OpenRegStream;
using c10::openreg::WorkDescription;

// Note [One call of the fallback]
// The arguments of one call, on their way to the CPU kernel and back. Every openreg tensor has one
// alias, however often it is passed, so that the kernel sees what is the same tensor as the same.
class HostCall {
 public:
  HostCall(const char* name, const c10::OperatorHandle& op, c10::DispatchKey cpu_key,
           c10::Device device, torch::jit::Stack* stack)
      : name_(name),
        schema_(op.schema()),
        op_(op),
        cpu_key_(cpu_key),
        device_(device),
        stack_(stack) {}

  // docs: fallback-run
  ResultPlan run() {
    waitForCurrentStream(device_, name_);
    const size_t first = stack_->size() - schema_.arguments().size();
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      replaceArgument((*stack_)[first + i], schema_.arguments()[i]);
    }
    passOnRequiresGrad();
    callCpuKernel();
    for (size_t i = 0; i < aliases_.size(); ++i) {
      takeOverResize(i);
    }
    const size_t first_result = stack_->size() - schema_.returns().size();
    for (size_t i = first_result; i < stack_->size(); ++i) {
      replaceResult((*stack_)[i]);
    }
    return can_be_planned_ ? ResultPlan(std::move(plan_)) : ResultPlan();
  }
  // docs: end

 private:
  void replaceArgument(c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
      value = aliasOf(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> tensors = value.toTensorVector();
      for (Tensor& tensor : tensors) {
        tensor = aliasOf(tensor);
      }
      value = c10::List<Tensor>(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
        tensors.push_back(tensor.has_value() ? std::optional<Tensor>(aliasOf(*tensor))
                                             : std::nullopt);
      }
      value = tensors;
    } else if (value.isDevice() && value.toDevice().type() == c10::openreg::kDeviceType) {
      value = c10::Device(kCPU);
    } else if (value.isGenerator()) {
      value = engineForHost(value.toGenerator(), device_.index());
    } else if (value.isNone() && isGenerator(argument)) {
      value = engineForHost(std::nullopt, device_.index());
    }
  }

  Tensor aliasOf(const Tensor& tensor) {
    if (!isOpenReg(tensor)) {
      return tensor;
    }
    for (const auto& [original, alias] : aliases_) {
      if (original.is_same(tensor)) {
        return alias;
      }
    }
    if (!isPlain(tensor)) {
      std::vector<Tensor> components = componentsOf(tensor);
      for (Tensor& component : components) {
        component = aliasOf(component);
      }
      aliases_.emplace_back(tensor, assemble(tensor, components));
      return aliases_.back().second;
    }
    for (const auto& [original, alias] : aliases_) {
      if (isPlain(original) && original.is_alias_of(tensor)) {
        aliases_.emplace_back(tensor, hostViewOnStorageOf(alias, tensor));
        return aliases_.back().second;
      }
    }
    Tensor alias = hostView(tensor);
    // A kernel may resize its result. The alias then gets memory of its own, from here.
    StorageImpl* storage = alias.storage().unsafeGetStorageImpl();
    storage->set_allocator(c10::GetCPUAllocator());
    storage->set_resizable(true);
    aliases_.emplace_back(tensor, alias);
    return alias;
  }

  // Kernels of sparse matrices compute what only their backward needs if somebody requires it.
  void passOnRequiresGrad() {
    if (cpu_key_ == c10::DispatchKey::CPU || !c10::GradMode::is_enabled()) {
      return;
    }
    for (auto& [original, alias] : aliases_) {
      if (original.requires_grad()) {
        alias.set_requires_grad(true);
      }
    }
  }

  void callCpuKernel() {
    const CpuKernelScope scope;
    TORCH_CHECK_NOT_IMPLEMENTED(
        op_.hasKernelForDispatchKey(cpu_key_) ||
            op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
            op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
            op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd),
        "Could not run '", name_, "' on ", device_,
        ": neither openreg nor the CPU has a kernel for it. Register one with "
        "torch.library.impl(\"",
        schema_.name(), "\", \"openreg\") or TORCH_LIBRARY_IMPL.");
    const HostWork work(getCurrentOpenRegStream(device_.index()), name_);
    op_.redispatchBoxed(c10::DispatchKeySet(cpu_key_), stack_);
  }

  // Gives an openreg tensor the sizes, and if it outgrew its memory the contents, of its alias.
  void takeOverResize(size_t index) {
    auto [original, alias] = aliases_[index];
    if (!isPlain(original)) {
      can_be_planned_ = false;
      assembleInto(original, alias, deviceComponents(alias));
      return;
    }
    const bool has_moved = alias.storage().data() != addressSeenByKernels(original);
    if (!has_moved && alias.sizes() == original.sizes() && alias.strides() == original.strides()) {
      return;
    }
    if (original.numel() == 0) {
      plan_.resizes.push_back(PlannedResize{index, alias.sizes(), alias.strides()});
    } else {
      can_be_planned_ = false;
    }
    TensorImpl* impl = original.unsafeGetTensorImpl();
    if (!has_moved) {
      impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
      return;
    }
    at::native::resize_bytes_nocuda(original.storage(), alias.storage().nbytes());
    impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    original.copy_(alias);
  }

  static const void* addressSeenByKernels(const Tensor& tensor) {
    return hostView(tensor).storage().data();
  }

  void replaceResult(c10::IValue& value) {
    if (value.isTensor()) {
      plan_.results.push_back({.is_list = false, .tensors = {}});
      value = resultOf(value.toTensor());
    } else if (value.isTensorList()) {
      plan_.results.push_back({.is_list = true, .tensors = {}});
      std::vector<Tensor> tensors = value.toTensorVector();
      for (Tensor& tensor : tensors) {
        tensor = resultOf(tensor);
      }
      value = c10::List<Tensor>(tensors);
    } else {
      can_be_planned_ = false;
    }
  }

  void plan(PlannedTensor tensor) { plan_.results.back().tensors.push_back(std::move(tensor)); }

  // The openreg tensor for a tensor that the kernel returned, and the plan of it.
  Tensor resultOf(const Tensor& result) {
    for (size_t i = 0; i < aliases_.size(); ++i) {
      if (aliases_[i].second.is_same(result)) {
        plan(PlannedTensor::argument(i));
        return aliases_[i].first;
      }
    }
    Tensor found = deviceTensor(result);
    plan(!found.defined()                     ? PlannedTensor::undefined()
         : isOpenReg(found) && isPlain(found) ? PlannedTensor::likeNew(found)
                                              : PlannedTensor());
    return found;
  }

  // The openreg tensor for a CPU tensor: an argument, a view of one, or new.
  Tensor deviceTensor(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) {
      can_be_planned_ = can_be_planned_ && !tensor.defined();
      return tensor;
    }
    for (const auto& [original, alias] : aliases_) {
      if (alias.is_same(tensor)) {
        return original;
      }
    }
    if (!isPlain(tensor)) {
      TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() != kMkldnn, name_, ": its result has layout ",
                                  tensor.layout(), ", which openreg does not support");
      can_be_planned_ = false;
      return assemble(tensor, deviceComponents(tensor));
    }
    for (const auto& [original, alias] : aliases_) {
      if (isPlain(alias) && alias.storage().is_alias_of(tensor.storage())) {
        can_be_planned_ = false;
        return viewOf(original, tensor);
      }
    }
    return moveToDevice(tensor);
  }

  // The components of a CPU tensor as openreg tensors: those of an argument, views, or new.
  std::vector<Tensor> deviceComponents(const Tensor& tensor) {
    std::vector<Tensor> components = componentsOf(tensor);
    for (Tensor& component : components) {
      component = deviceTensor(component);
    }
    return components;
  }

  static Tensor viewOf(const Tensor& original, const Tensor& result) {
    auto impl = c10::make_intrusive<TensorImpl>(TensorImpl::VIEW, Storage(original.storage()),
                                                original.key_set(), result.dtype());
    impl->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
    impl->_set_conj(result.is_conj());
    impl->_set_neg(result.is_neg());
    return Tensor(std::move(impl));
  }

  // `result` is not used afterwards, so it need not be copied aside.
  Tensor moveToDevice(const Tensor& result) const {
    Tensor moved =
        at::has_internal_overlap(result) == at::MemOverlap::Yes
            ? emptyOnCurrentDevice(result.sizes(), result.scalar_type())
            : emptyStridedOnCurrentDevice(result.sizes(), result.strides(), result.scalar_type());
    moved.unsafeGetTensorImpl()->_set_conj(result.is_conj());
    moved.unsafeGetTensorImpl()->_set_neg(result.is_neg());
    if (result.numel() > 0) {
      // An allocation may reuse memory that work has yet to leave.
      const OpenRegStream stream = getCurrentOpenRegStream(device_.index());
      stream.synchronize(name_);
      const HostWork work(stream, "aten::copy_ (of a result)",
                          WorkDescription::copy(orMemcpyHostToDevice, result.nbytes()));
      hostView(moved).copy_(result);
    }
    return moved;
  }

  const char* name_;
  const c10::FunctionSchema& schema_;
  const c10::OperatorHandle& op_;
  const c10::DispatchKey cpu_key_;
  const c10::Device device_;
  torch::jit::Stack* stack_;
  std::vector<std::pair<Tensor, Tensor>> aliases_;  // openreg tensor, its CPU alias
  CallPlan plan_;
  bool can_be_planned_ = true;
};

}  // namespace

ResultPlan callOnHost(const char* name, const c10::OperatorHandle& op, c10::DispatchKey cpu_key,
                      c10::Device device, torch::jit::Stack* stack) {
  return HostCall(name, op, cpu_key, device, stack).run();
}

}  // namespace at::openreg
