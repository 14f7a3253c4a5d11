#include "torch_openreg/aten/GeneratedKernel.h"

#include <c10/util/Exception.h>

#include <bitset>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "csrc/core/Mutex.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {
namespace {

using c10::openreg::kDeviceType;

// docs: generated-call
// A call with up to `Count` arguments.
template <size_t Count>
struct CallWithSlots {
  GeneratedFunction function;
  std::bitset<Count> is_host_scalar;
  OpenRegSlot slots[Count];

  c10::openreg::KernelError operator()() const {
    if (C10_LIKELY(is_host_scalar.none())) {
      return function.call(function.context, slots);
    }
    // A replay runs the closure again: the slots must not change, and kernels read their values.
    OpenRegSlot pointing[Count];
    for (size_t i = 0; i < Count; ++i) {
      pointing[i] = slots[i];
      if (is_host_scalar[i]) {
        pointing[i].pointer = slots[i].value;
      }
    }
    return function.call(function.context, pointing);
  }
};
// docs: end

c10::openreg::Operand operandOf(const Tensor& tensor, GeneratedParameter access) {
  c10::openreg::Operand operand{
      tensor.unsafeGetTensorImpl(),
      access == GeneratedParameter::Written || access == GeneratedParameter::Updated};
  operand.is_updated = access == GeneratedParameter::Updated;
  operand.is_unknown = access == GeneratedParameter::Unknown;
  return operand;
}

using KernelKey =
    std::tuple<std::string, GeneratedCall, const void*, std::vector<GeneratedParameter>>;

c10::openreg::Mutex mutex;

// Leaked, as are the kernels.
std::map<KernelKey, GeneratedKernel*>& kernels() OPENREG_REQUIRES(mutex) {
  static auto* instance = new std::map<KernelKey, GeneratedKernel*>;
  return *instance;
}

}  // namespace

GeneratedKernel& GeneratedKernel::get(const std::string& name, const GeneratedFunction& function,
                                      c10::ArrayRef<GeneratedParameter> parameters) {
  TORCH_CHECK(parameters.size() <= kMaxGeneratedArguments, name, ": expected at most ",
              kMaxGeneratedArguments, " parameters, got ", parameters.size());
  const c10::openreg::Lock lock(mutex);
  GeneratedKernel*& kernel = kernels()[{name, function.call, function.context, parameters.vec()}];
  if (kernel == nullptr) {
    kernel = new GeneratedKernel(name, function, parameters);
  }
  return *kernel;
}

GeneratedKernel::GeneratedKernel(std::string name, const GeneratedFunction& function,
                                 c10::ArrayRef<GeneratedParameter> parameters)
    : name_(std::move(name)), function_(function), parameters_(parameters.vec()) {
  choose<4>(parameters_.size());
}

// A closure is copied as a whole, so kernels with few parameters use a small one.
template <size_t Count>
void GeneratedKernel::choose(size_t count) {
  if constexpr (Count < kMaxGeneratedArguments) {
    if (count > Count) {
      choose<Count * 2>(count);
      return;
    }
  }
  launch_ = &launchSized<Count>;
  described_ = c10::openreg::describeKernel<WrappedKernel<CallWithSlots<Count>>>(name_.c_str());
}

template <size_t Count>
void GeneratedKernel::launchSized(const GeneratedKernel& kernel,
                                  const GeneratedArguments& arguments,
                                  c10::openreg::Verdict verdict) {
  CallWithSlots<Count> closure;
  closure.function = kernel.function_;
  std::memcpy(closure.slots, arguments.slots_, arguments.size_ * sizeof(OpenRegSlot));
  if (C10_UNLIKELY(arguments.host_scalar_count_ > 0)) {
    for (size_t i = 0; i < arguments.size_; ++i) {
      closure.is_host_scalar[i] =
          kernel.parameters_[i] == GeneratedParameter::Read && arguments.tensors_[i] == nullptr;
    }
  }
  launchOp(kernel.described_, c10::Device(kDeviceType, arguments.device_), closure, verdict);
}

void GeneratedKernel::launch(const GeneratedArguments& arguments) const {
  TORCH_CHECK(arguments.size_ == parameters_.size(), name_, ": expected ", parameters_.size(),
              " arguments, got ", arguments.size_);
  const c10::openreg::Verdict verdict = c10::openreg::observeAccesses(
      arguments.device_, name(), [&](c10::openreg::OperandList& operands) {
        for (size_t i = 0; i < arguments.size_; ++i) {
          if (const Tensor* tensor = arguments.tensors_[i]) {
            operands.push_back(operandOf(*tensor, parameters_[i]));
          }
        }
      });
  launch_(*this, arguments, verdict);
}

OpenRegSlot& GeneratedArguments::next() {
  TORCH_CHECK(size_ < kernel_.parameters().size(), kernel_.name(), ": expected ",
              kernel_.parameters().size(), " arguments, got more");
  tensors_[size_] = nullptr;
  return slots_[size_++];
}

void GeneratedArguments::addTensor(const Tensor& tensor) {
  OpenRegSlot& slot = next();
  const size_t index = size_ - 1;
  TORCH_CHECK(tensor.defined() && tensor.device() == c10::Device(kDeviceType, device_),
              kernel_.name(), ": expected argument ", index, " on ",
              c10::Device(kDeviceType, device_), ", got ",
              tensor.defined() ? c10::str("a tensor on ", tensor.device()) : "an undefined tensor");
  const void* address = kernel_.parameters()[index] == GeneratedParameter::Read
                            ? tensor.const_data_ptr()
                            : tensor.mutable_data_ptr();
  slot.pointer =
      address == nullptr ? nullptr : static_cast<const std::byte*>(address) + kernelOffset();
  tensors_[index] = &tensor;
}

void GeneratedArguments::addHostScalar(const Tensor& tensor) {
  OpenRegSlot& slot = next();
  const size_t index = size_ - 1;
  TORCH_CHECK(tensor.defined() && tensor.is_cpu() && tensor.numel() == 1 &&
                  kernel_.parameters()[index] == GeneratedParameter::Read,
              kernel_.name(), ": expected argument ", index,
              " to be a CPU tensor of one element that is read, got ",
              tensor.defined()
                  ? c10::str("a tensor of sizes ", tensor.sizes(), " on ", tensor.device())
                  : "an undefined tensor");
  TORCH_INTERNAL_ASSERT(static_cast<size_t>(tensor.element_size()) <= sizeof(slot.value));
  std::memcpy(slot.value, tensor.const_data_ptr(), tensor.element_size());
  ++host_scalar_count_;
}

}  // namespace at::openreg
