// Kernels that torch.compile has generated, on our streams.
//
// The source of such a kernel is what Inductor generates for the CPU; torch_openreg/inductor says
// how that comes about. The calling thread puts the arguments into slots, by value, and the
// stream's worker calls the kernel with kernel addresses.
//
// Threads, GIL, capture, ownership and errors of a launch are those of Launch.h. Memory is not kept
// alive: Note [Lifetimes of enqueued work] in TensorAlias.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <openreg/stream.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/inductor/kernel.h"

namespace at::openreg {

// Fewer than this: Inductor stops fusing at 500.
inline constexpr size_t kMaxGeneratedArguments = 1024;

// What a kernel does with an argument.
enum class GeneratedParameter : char {
  Read = 'r',     // a tensor
  Written = 'w',  // a tensor
  Updated = 'u',  // a tensor, written after its old contents were read
  Integer = 'i',
  Number = 'f',
};

class GeneratedArguments;

class OPENREG_EXPORT GeneratedKernel {
 public:
  // The kernel of this name, made at the first call for it and never destroyed: graphs and traces
  // may refer to it for as long as the process lives.
  // Errors: RuntimeError for a library that is not loaded or is no kernel's, and for parameters
  // that are none of GeneratedParameter.
  static GeneratedKernel& get(const std::string& name, const std::string& library,
                              std::string_view parameters);

  // The same for a function of a library that stays loaded.
  static GeneratedKernel& get(const std::string& name, OpenRegKernelCall call,
                              std::string_view parameters);

  GeneratedKernel(const GeneratedKernel&) = delete;
  GeneratedKernel& operator=(const GeneratedKernel&) = delete;

  const char* name() const { return name_.c_str(); }
  c10::ArrayRef<GeneratedParameter> parameters() const { return parameters_; }

  // Enqueues a call on the current stream of the device, in the environment of the calling thread.
  void launch(const GeneratedArguments& arguments) const;

 private:
  using Launch = void (*)(const GeneratedKernel&, const GeneratedArguments&);

  GeneratedKernel(std::string name, OpenRegKernelCall call,
                  std::vector<GeneratedParameter> parameters);

  template <size_t Count>
  void choose(size_t count);
  template <size_t Count>
  static void launchSized(const GeneratedKernel& kernel, const GeneratedArguments& arguments);
  void observeAccesses(const GeneratedArguments& arguments) const;

  const std::string name_;
  const OpenRegKernelCall call_;
  const std::vector<GeneratedParameter> parameters_;
  orKernel described_{};
  Launch launch_ = nullptr;
};

// The arguments of one launch. They are as many as the kernel's parameters when it is launched, and
// their tensors live that long.
class OPENREG_EXPORT GeneratedArguments {
 public:
  GeneratedArguments(const GeneratedKernel& kernel, c10::DeviceIndex device)
      : kernel_(kernel), device_(device) {}

  // The next one. Errors: RuntimeError if the tensor is not on the launch's device.
  void addTensor(const Tensor& tensor);

  // The next one, a CPU tensor of one element, whose value is copied now.
  // Errors: RuntimeError if it is not one, or if the kernel writes it.
  void addHostScalar(const Tensor& tensor);

  void addInteger(int64_t value) { next().integer = value; }
  void addNumber(double value) { next().number = value; }

 private:
  friend class GeneratedKernel;

  OpenRegSlot& next();

  const GeneratedKernel& kernel_;
  const c10::DeviceIndex device_;
  size_t size_ = 0;
  size_t host_scalar_count_ = 0;
  const Tensor* tensors_[kMaxGeneratedArguments];  // null if it is none on the device
  OpenRegSlot slots_[kMaxGeneratedArguments];
};

// As at::empty_strided, on a device, without the dispatcher.
OPENREG_EXPORT Tensor emptyStridedOn(c10::DeviceIndex device, IntArrayRef sizes,
                                     IntArrayRef strides, ScalarType dtype);

}  // namespace at::openreg
