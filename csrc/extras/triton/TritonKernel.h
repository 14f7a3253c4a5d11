// Launches kernels that Triton has compiled for the host.
//
// The source of such a kernel is made from Triton's intermediate code; see
// torch_openreg/extras/triton, and torch_openreg/triton/kernel.h for its interface. The calling
// thread stores the arguments in slots, by value, and the stream's worker runs the grid.
//
// Threads, GIL, capture, ownership and errors of a launch are those of Launch.h. Memory is not kept
// alive: Note [Lifetimes of enqueued work] in TensorAlias.h. An access outside of the storage of
// its argument fails the stream with code 700, and an assertion with code 710.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <openreg/stream.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"
#include "torch_openreg/core/Trace.h"
#include "torch_openreg/triton/kernel.h"

namespace at::openreg {

// What a parameter is, and for a pointer how the kernel accesses the argument's memory.
enum class TritonParameter : char {
  Read = 'r',
  Written = 'w',
  Updated = 'u',    // read and written
  Untouched = 'n',  // neither
  Signed = 'i',     // an integer
  Unsigned = 'j',   // an integer
  Number = 'f',     // of a floating-point type
};

// How many programs a launch runs, in each direction.
using TritonGrid = std::array<uint32_t, 3>;

class TritonArguments;

class OPENREG_EXPORT TritonKernel {
 public:
  // A parameter, and the name that the source gives it.
  struct Parameter {
    TritonParameter kind;
    std::string name;
    size_t slot;  // the first of its slots
  };

  // What the number of a location stands for.
  struct Location {
    std::string message;  // of an assertion
    std::string place;    // files and lines, from the innermost function to the kernel
  };

  // Loads the library of a kernel, which stays loaded, as the kernel does: graphs and traces may
  // refer to it until the process ends. `kinds` has a letter for each parameter, and `names` the
  // name of each.
  // Errors: RuntimeError for a library that cannot be loaded or is not that of a kernel, and for
  // letters that are not in TritonParameter.
  static TritonKernel& load(const std::string& name, const std::string& library,
                            std::string_view kinds, const std::vector<std::string>& names,
                            std::vector<Location> locations);

  TritonKernel(const TritonKernel&) = delete;
  TritonKernel& operator=(const TritonKernel&) = delete;

  const char* name() const { return name_.c_str(); }
  c10::ArrayRef<Parameter> parameters() const { return parameters_; }

  // Loads the library of the same kernel that tells its accesses; see Trace.h. Later launches are
  // traced, if an observer makes traces.
  // Errors: as load().
  void loadTraced(const std::string& library);
  bool hasTraced() const { return traced_entry_.load() != nullptr; }

  // Enqueues a run of the grid, in the environment of the calling thread. A grid without programs
  // enqueues nothing.
  void launch(const c10::openreg::OpenRegStream& stream, const TritonGrid& grid,
              const TritonArguments& arguments) const;

 private:
  struct Call;

  TritonKernel(std::string name, OpenRegTritonEntry entry, std::vector<Parameter> parameters,
               std::vector<Location> locations);

  c10::openreg::KernelError run(const Call& call) const;
  c10::openreg::KernelError recordOf(const OpenRegTritonError& error, const Call& call) const;
  std::string textOf(const OpenRegTritonError& error, const Call& call) const;

  const std::string name_;
  const OpenRegTritonEntry entry_;
  const std::vector<Parameter> parameters_;
  const std::vector<Location> locations_;
  const orKernel described_;
  const c10::openreg::TracedKernel traced_;
  std::atomic<OpenRegTritonEntry> traced_entry_{nullptr};
};

// The arguments of one launch. At the launch, their number must be that of the kernel's parameters,
// and the tensors must be alive.
class OPENREG_EXPORT TritonArguments {
 public:
  TritonArguments(const TritonKernel& kernel, c10::DeviceIndex device)
      : kernel_(kernel), device_(device) {}

  // The parameter of the next argument.
  // Errors: TypeError if the kernel has no more.
  const TritonKernel::Parameter& parameter() const;

  // Adds the memory of a tensor on the launch's device, or of a pinned one.
  // Errors: ValueError for other tensors.
  void addTensor(const Tensor& tensor);

  // The same, with an address in it that the kernel is given instead of the tensor's.
  void addTensorAt(const Tensor& tensor, uint64_t address);

  // Adds an address of which no more is known. 0 is none.
  // Errors: ValueError for one of the host's.
  void addAddress(uint64_t address);

  void addInteger(uint64_t value) { add(value); }
  void addNumber(double value);

 private:
  friend class TritonKernel;

  void add(uint64_t value);
  void addPointer(uint64_t address, uint64_t begin, uint64_t nbytes);
  [[noreturn]] void refuse(const char* what, const std::string& where) const;

  const TritonKernel& kernel_;
  const c10::DeviceIndex device_;
  c10::SmallVector<uint64_t, 32> slots_;
  c10::SmallVector<const Tensor*, 16> tensors_;  // null for what is no tensor
};

}  // namespace at::openreg
