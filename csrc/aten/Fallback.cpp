#include "csrc/aten/Fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <openreg/openreg.h>
#include <torch/library.h>

#include <set>
#include <vector>

#include "csrc/aten/Copy.h"
#include "csrc/aten/Factories.h"
#include "csrc/aten/FallbackStats.h"
#include "csrc/aten/OpLaunch.h"
#include "csrc/aten/TensorAlias.h"
#include "csrc/core/Exception.h"
#include "csrc/core/Stream.h"
#include "csrc/random/Generator.h"

namespace at::openreg {
namespace {

using c10::openreg::kDeviceType;

// Operators that take CPU tensors beside openreg tensors, as on CUDA: index tensors.
bool allowsCpuTensors(const std::string& name) {
  static const auto* names = new std::set<std::string>{
      "aten::_index_put_impl_", "aten::index_put_", "aten::index_put", "aten::_unsafe_index_put"};
  return names->count(name) == 1;
}

// Note [One call of the fallback]
// The arguments of one call, on their way to the CPU kernel and back. Every openreg tensor has one
// alias, however often it is passed, so that the kernel sees what is the same tensor as the same.
class FallbackCall {
 public:
  FallbackCall(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : schema_(op.schema()), op_(op), stack_(stack) {}

  // docs: fallback-run
  void run() {
    findDevice();
    const c10::OptionalDeviceGuard guard(device_);
    waitForInputs();
    const size_t first = stack_->size() - schema_.arguments().size();
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      replaceArgument((*stack_)[first + i], schema_.arguments()[i]);
    }
    callCpuKernel();
    for (auto& [original, alias] : aliases_) {
      takeOverResize(original, alias);
    }
    const size_t first_result = stack_->size() - schema_.returns().size();
    for (size_t i = first_result; i < stack_->size(); ++i) {
      replaceResult((*stack_)[i]);
    }
  }
  // docs: end

 private:
  template <typename Visit>
  void visitTensors(const Visit& visit) const {
    const size_t first = stack_->size() - schema_.arguments().size();
    for (size_t i = first; i < stack_->size(); ++i) {
      const IValue& value = (*stack_)[i];
      if (value.isTensor()) {
        visit(value.toTensor());
      } else if (value.isTensorList()) {
        for (const Tensor& tensor : value.toTensorVector()) {
          visit(tensor);
        }
      } else if (value.isOptionalTensorList()) {
        for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
          if (tensor.has_value()) {
            visit(*tensor);
          }
        }
      }
    }
  }

  std::string name() const { return c10::toString(schema_.operator_name()); }

  // The one openreg device that the call is about; throws if there are two.
  void findDevice() {
    visitTensors([&](const Tensor& tensor) {
      if (isOpenReg(tensor)) {
        TORCH_CHECK(!device_.has_value() || *device_ == tensor.device(),
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, ",
                    *device_, " and ", tensor.device(), "! (", name(), ")");
        device_ = tensor.device();
      }
    });
    const size_t first = stack_->size() - schema_.arguments().size();
    for (size_t i = first; !device_.has_value() && i < stack_->size(); ++i) {
      const IValue& value = (*stack_)[i];
      if (value.isDevice() && value.toDevice().type() == kDeviceType) {
        const c10::Device device = value.toDevice();
        device_ = c10::Device(kDeviceType, c10::openreg::resolveDeviceIndex(device.index()));
      }
    }
    if (!device_.has_value()) {
      device_ = c10::Device(kDeviceType, c10::openreg::currentDevice());
    }
    if (!allowsCpuTensors(schema_.name())) {
      visitTensors([&](const Tensor& tensor) {
        TORCH_CHECK(!tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0,
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, ",
                    *device_, " and cpu! (", name(), ")");
      });
    }
  }

  void waitForInputs() const { waitForCurrentStream(*device_); }

  void replaceArgument(IValue& value, const c10::Argument& argument) {
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
    } else if (value.isDevice() && value.toDevice().type() == kDeviceType) {
      value = c10::Device(kCPU);
    } else if (value.isGenerator()) {
      value = engineForHost(value.toGenerator(), device_->index());
    } else if (value.isNone() && isGenerator(*argument.type())) {
      value = engineForHost(std::nullopt, device_->index());
    }
  }

  static bool isGenerator(const c10::Type& type) {
    return type.str() == "Generator?" || type.str() == "Generator";
  }

  Tensor aliasOf(const Tensor& tensor) {
    if (!isOpenReg(tensor)) {
      return tensor;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == kStrided, name(),
                                ": expected a tensor of strided layout on ", tensor.device(),
                                ", got one of layout ", tensor.layout());
    for (const auto& [original, alias] : aliases_) {
      if (original.is_same(tensor)) {
        return alias;
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

  void callCpuKernel() {
    // The current dispatch state is that of an operator below autograd; the kernel's own calls
    // must be, too.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    TORCH_CHECK_NOT_IMPLEMENTED(
        op_.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
            op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
            op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
            op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd),
        "Could not run '", name(), "' on ", *device_,
        ": neither openreg nor the CPU has a kernel for it. Register one with "
        "torch.library.impl(\"",
        schema_.name(), "\", \"openreg\") or TORCH_LIBRARY_IMPL.");
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
  }

  // Gives an openreg tensor the sizes, and if it outgrew its memory the contents, of its alias.
  void takeOverResize(Tensor& original, const Tensor& alias) {
    const bool has_moved = alias.storage().data() != addressSeenByKernels(original);
    if (!has_moved && alias.sizes() == original.sizes() && alias.strides() == original.strides()) {
      return;
    }
    TensorImpl* impl = original.unsafeGetTensorImpl();
    if (!has_moved) {
      impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
      return;
    }
    original.resize_(alias.sizes());
    impl->set_sizes_and_strides(alias.sizes(), alias.strides());
    copy(original, alias, /*non_blocking=*/false);
  }

  static const void* addressSeenByKernels(const Tensor& tensor) {
    return hostView(tensor).storage().data();
  }

  void replaceResult(IValue& value) {
    if (value.isTensor()) {
      value = resultOf(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> tensors = value.toTensorVector();
      for (Tensor& tensor : tensors) {
        tensor = resultOf(tensor);
      }
      value = c10::List<Tensor>(tensors);
    }
  }

  // The openreg tensor for a tensor that the kernel returned: an argument, a view of one, or new.
  Tensor resultOf(const Tensor& result) {
    if (!result.defined() || !result.is_cpu()) {
      return result;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == kStrided, name(), ": its result has layout ",
                                result.layout(), ", which openreg does not support");
    TORCH_CHECK_NOT_IMPLEMENTED(!result.is_quantized(), name(),
                                ": its result is quantized, which openreg does not support");
    for (const auto& [original, alias] : aliases_) {
      if (alias.is_same(result)) {
        return original;
      }
    }
    for (const auto& [original, alias] : aliases_) {
      if (alias.storage().is_alias_of(result.storage())) {
        return viewOf(original, result);
      }
    }
    return moveToDevice(result);
  }

  static Tensor viewOf(const Tensor& original, const Tensor& result) {
    auto impl = c10::make_intrusive<TensorImpl>(TensorImpl::VIEW, Storage(original.storage()),
                                                original.key_set(), result.dtype());
    impl->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
    impl->_set_conj(result.is_conj());
    impl->_set_neg(result.is_neg());
    return Tensor(std::move(impl));
  }

  Tensor moveToDevice(const Tensor& result) const {
    if (!result.is_non_overlapping_and_dense()) {
      Tensor moved = emptyOn(*device_, result.sizes(), result.scalar_type());
      return copy(moved, result, /*non_blocking=*/false);
    }
    Tensor moved = emptyStridedOn(*device_, result.sizes(), result.strides(), result.scalar_type());
    if (result.nbytes() > 0) {
      OPENREG_CHECK(orMemcpyAsync(moved.mutable_data_ptr(), result.const_data_ptr(),
                                  result.nbytes(), orMemcpyHostToDevice,
                                  c10::openreg::getCurrentOpenRegStream().handle()));
    }
    moved.unsafeGetTensorImpl()->_set_conj(result.is_conj());
    moved.unsafeGetTensorImpl()->_set_neg(result.is_neg());
    return moved;
  }

  const c10::FunctionSchema& schema_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  std::optional<c10::Device> device_;
  std::vector<std::pair<Tensor, Tensor>> aliases_;  // openreg tensor, its CPU alias
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  countFallback(c10::toString(op.schema().operator_name()));
  FallbackCall(op, stack).run();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace at::openreg
