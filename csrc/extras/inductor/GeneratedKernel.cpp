#include "csrc/extras/inductor/GeneratedKernel.h"

#include <ATen/Context.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>
#include <dlfcn.h>

#include <bitset>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "csrc/aten/launch/EmptyTensor.h"
#include "csrc/core/Mutex.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {
namespace {

using c10::openreg::kDeviceType;

// Calls generated code. What it throws is a check of its data, also where it is no exception of
// torch's.
void callGenerated(OpenRegKernelCall call, const OpenRegSlot* slots) {
  try {
    call(slots);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what());
  }
}

// docs: generated-call
// A call with up to `Count` arguments.
template <size_t Count>
struct GeneratedCall {
  OpenRegKernelCall call;
  std::bitset<Count> is_host_scalar;
  OpenRegSlot slots[Count];

  void operator()() const {
    if (C10_LIKELY(is_host_scalar.none())) {
      callGenerated(call, slots);
      return;
    }
    // A replay runs the closure again: the slots must not change, and kernels read their values.
    OpenRegSlot pointing[Count];
    for (size_t i = 0; i < Count; ++i) {
      pointing[i] = slots[i];
      if (is_host_scalar[i]) {
        pointing[i].pointer = slots[i].value;
      }
    }
    callGenerated(call, pointing);
  }
};
// docs: end

OpenRegKernelCall findCall(const std::string& name, const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  TORCH_CHECK(handle != nullptr, name,
              ": expected the library of a kernel that has been loaded, got ", library);
  void* call = dlsym(handle, OPENREG_KERNEL_CALL);
  dlclose(handle);
  TORCH_CHECK(call != nullptr, name,
              ": expected a library that exports " OPENREG_KERNEL_CALL ", got ", library);
  return reinterpret_cast<OpenRegKernelCall>(call);
}

std::vector<GeneratedParameter> parseParameters(const std::string& name, std::string_view text) {
  TORCH_CHECK(text.size() <= kMaxGeneratedArguments, name, ": expected at most ",
              kMaxGeneratedArguments, " parameters, got ", text.size());
  std::vector<GeneratedParameter> parameters;
  parameters.reserve(text.size());
  for (const char letter : text) {
    TORCH_CHECK(std::string_view("rwuif").find(letter) != std::string_view::npos, name,
                ": expected parameters of the kinds r, w, u, i and f, got '", letter, "'");
    parameters.push_back(static_cast<GeneratedParameter>(letter));
  }
  return parameters;
}

using KernelKey = std::tuple<std::string, OpenRegKernelCall, std::string>;

c10::openreg::Mutex mutex;

// Leaked, as are the kernels.
std::map<KernelKey, GeneratedKernel*>& kernels() OPENREG_REQUIRES(mutex) {
  static auto* instance = new std::map<KernelKey, GeneratedKernel*>;
  return *instance;
}

}  // namespace

GeneratedKernel& GeneratedKernel::get(const std::string& name, const std::string& library,
                                      std::string_view parameters) {
  return get(name, findCall(name, library), parameters);
}

GeneratedKernel& GeneratedKernel::get(const std::string& name, OpenRegKernelCall call,
                                      std::string_view parameters) {
  const c10::openreg::Lock lock(mutex);
  GeneratedKernel*& kernel = kernels()[{name, call, std::string(parameters)}];
  if (kernel == nullptr) {
    kernel = new GeneratedKernel(name, call, parseParameters(name, parameters));
  }
  return *kernel;
}

GeneratedKernel::GeneratedKernel(std::string name, OpenRegKernelCall call,
                                 std::vector<GeneratedParameter> parameters)
    : name_(std::move(name)), call_(call), parameters_(std::move(parameters)) {
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
  described_ = describeOp<GeneratedCall<Count>>(name_.c_str());
}

template <size_t Count>
void GeneratedKernel::launchSized(const GeneratedKernel& kernel,
                                  const GeneratedArguments& arguments,
                                  c10::openreg::Verdict verdict) {
  GeneratedCall<Count> closure;
  closure.call = kernel.call_;
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
            operands.push_back({tensor->unsafeGetTensorImpl(),
                                parameters_[i] != GeneratedParameter::Read,
                                /*name=*/nullptr, /*is_host_memory=*/false,
                                /*is_updated=*/parameters_[i] == GeneratedParameter::Updated});
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

Tensor emptyStridedOn(c10::DeviceIndex device, IntArrayRef sizes, IntArrayRef strides,
                      ScalarType dtype) {
  const c10::Device target(kDeviceType, device);
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory())) {
    return at::empty_strided(sizes, strides, at::TensorOptions(target).dtype(dtype));
  }
  const c10::DeviceGuard guard(target);
  return emptyStridedOnCurrentDevice(sizes, strides, dtype);
}

}  // namespace at::openreg
