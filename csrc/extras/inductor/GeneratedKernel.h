// Launches kernels that torch.compile has generated.
//
// The source of such a kernel is what Inductor generates for the CPU; see torch_openreg/inductor.
// The calling thread stores the arguments in slots, by value, and the stream's worker calls the
// kernel with kernel addresses.
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
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/inductor/kernel.h"

namespace at::openreg {

// Kernels have fewer parameters: Inductor stops fusing at 500.
inline constexpr size_t kMaxGeneratedArguments = 1024;

// How a kernel accesses an argument.
enum class GeneratedParameter : char {
  Read = 'r',     // a tensor
  Written = 'w',  // a tensor
  Updated = 'u',  // a tensor, whose old contents are read before it is written
  Integer = 'i',
  Number = 'f',
};

class GeneratedArguments;

class OPENREG_EXPORT GeneratedKernel {
 public:
  // The kernel with this name. Created at the first call and never destroyed, because graphs and
  // traces may refer to it until the process ends.
  // Errors: RuntimeError for a library that is not loaded or does not export a kernel, and for
  // parameters that are not in GeneratedParameter.
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
  using LaunchFunction = void (*)(const GeneratedKernel&, const GeneratedArguments&,
                                  c10::openreg::Verdict);

  GeneratedKernel(std::string name, OpenRegKernelCall call,
                  std::vector<GeneratedParameter> parameters);

  template <size_t Count>
  void choose(size_t count);
  template <size_t Count>
  static void launchSized(const GeneratedKernel& kernel, const GeneratedArguments& arguments,
                          c10::openreg::Verdict verdict);

  const std::string name_;
  const OpenRegKernelCall call_;
  const std::vector<GeneratedParameter> parameters_;
  orKernel described_{};
  LaunchFunction launch_ = nullptr;
};

// The arguments of one launch. At the launch, their number must be that of the kernel's parameters,
// and the tensors must be alive.
class OPENREG_EXPORT GeneratedArguments {
 public:
  GeneratedArguments(const GeneratedKernel& kernel, c10::DeviceIndex device)
      : kernel_(kernel), device_(device) {}

  // Adds an argument. Errors: RuntimeError if the tensor is not on the launch's device.
  void addTensor(const Tensor& tensor);

  // Adds a CPU tensor of one element as an argument; its value is copied now.
  // Errors: RuntimeError for other tensors, or if the kernel writes the argument.
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
  const Tensor* tensors_[kMaxGeneratedArguments];  // null for a host scalar
  OpenRegSlot slots_[kMaxGeneratedArguments];
};

// As at::empty_strided on a device, without the dispatcher.
OPENREG_EXPORT Tensor emptyStridedOn(c10::DeviceIndex device, IntArrayRef sizes,
                                     IntArrayRef strides, ScalarType dtype);

}  // namespace at::openreg
