// Launches kernels that a compiler has generated at run time, such as torch.compile's.
//
//   GeneratedKernel& kernel = GeneratedKernel::get(
//       "scale", {&callScale, nullptr}, {GeneratedParameter::Updated, GeneratedParameter::Number});
//   GeneratedArguments arguments(kernel, tensor.device().index());
//   arguments.addTensor(tensor);
//   arguments.addNumber(2.0);
//   kernel.launch(arguments);
//
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
#include <vector>

#include "torch_openreg/aten/KernelSlot.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {

// Kernels have fewer parameters: Inductor stops fusing at 500.
inline constexpr size_t kMaxGeneratedArguments = 1024;

// What a parameter is: a tensor, which the kernel accesses in this way, or a number.
enum class GeneratedParameter : uint8_t {
  Read,
  Written,
  Updated,  // its old contents are read before it is written
  Unknown,  // any of these, or none
  Integer,
  Number,
};

// Calls a kernel with a slot for each argument, on the worker. May throw. `context` is that of the
// GeneratedFunction.
using GeneratedCall = c10::openreg::KernelError (*)(const void* context, const OpenRegSlot* slots);

// What a worker calls. Both members live as long as the process.
struct GeneratedFunction {
  GeneratedCall call;
  const void* context = nullptr;  // such as the generated function
};

class GeneratedArguments;

class OPENREG_EXPORT GeneratedKernel {
 public:
  // The kernel with this name, function and parameters. Created at the first call and never
  // destroyed, because graphs and traces may refer to it until the process ends.
  // Errors: RuntimeError for more than kMaxGeneratedArguments parameters.
  static GeneratedKernel& get(const std::string& name, const GeneratedFunction& function,
                              c10::ArrayRef<GeneratedParameter> parameters);

  GeneratedKernel(const GeneratedKernel&) = delete;
  GeneratedKernel& operator=(const GeneratedKernel&) = delete;

  const char* name() const { return name_.c_str(); }
  c10::ArrayRef<GeneratedParameter> parameters() const { return parameters_; }

  // Enqueues a call on the current stream of the device, in the environment of the calling thread.
  void launch(const GeneratedArguments& arguments) const;

 private:
  using LaunchFunction = void (*)(const GeneratedKernel&, const GeneratedArguments&,
                                  c10::openreg::Verdict);

  GeneratedKernel(std::string name, const GeneratedFunction& function,
                  c10::ArrayRef<GeneratedParameter> parameters);

  template <size_t Count>
  void choose(size_t count);
  template <size_t Count>
  static void launchSized(const GeneratedKernel& kernel, const GeneratedArguments& arguments,
                          c10::openreg::Verdict verdict);

  const std::string name_;
  const GeneratedFunction function_;
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
  // Errors: RuntimeError for other tensors, or if the kernel does more than read the argument.
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

}  // namespace at::openreg
