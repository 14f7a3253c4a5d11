// The interface between C++ wrappers that Inductor generates and the backend. This text becomes
// part of the wrapper's source, which is compiled without our headers and not linked with our
// library: the functions come from a table, which is looked up in the process.
//
// A function of the table returns null, or an error text that is valid until the thread's next
// error.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "torch_openreg/inductor/kernel.h"

// An argument of a kernel or an operator, as the C functions of torch's own wrappers take it.
struct OpenRegValue {
  enum Kind : int32_t {
    Null,
    Integer,
    Number,
    Tensor,
    HostScalar,      // a CPU tensor of one element, for a kernel
    Text,            // const char*
    Integers,        // const int64_t*
    Flags,           // const int32_t*
    Numbers,         // const double*
    Tensors,         // AtenTensorHandle*: one, some, or where to put a result
    TensorPointers,  // const AtenTensorHandle**: optional ones
    Other,           // a pointer of a type that operators do not take
  };

  Kind kind;
  union {
    int64_t integer;
    double number;
    const void* pointer;
  };
};

struct OpenRegWrapperFunctions {
  int64_t version;

  // The kernel with this name, with a letter for each parameter: see InductorKernel.h. Its
  // library is never unloaded.
  const char* (*get_kernel)(const char* name, OpenRegKernelCall call, const char* parameters,
                            const void** kernel);
  // Enqueues a call on the current stream of the device.
  const char* (*launch)(const void* kernel, int32_t device, const OpenRegValue* values,
                        size_t count);
  // Calls an operator through the dispatcher. The values are those of the C function that torch
  // generates for it: out arguments, the others in order, and a pointer for each result.
  const char* (*call)(const char* name, const char* overload, const OpenRegValue* values,
                      size_t count);

  // Allocates memory for weights on the current device.
  const char* (*allocate)(size_t size_bytes, void** memory);
  void (*free)(void* memory);
  // Copies to such memory.
  const char* (*copy_from_host)(void* memory, size_t offset, const void* source, size_t size_bytes);
  const char* (*copy_on_device)(void* memory, size_t offset, const void* source, size_t size_bytes);
};

#define OPENREG_WRAPPER_VERSION 1
#define OPENREG_WRAPPER_FUNCTIONS "openreg_wrapper_functions"

namespace openreg_wrapper {
// Local to each library: its kernels have names that other libraries use as well, and static
// variables of inline functions are shared in the whole process.
namespace {

inline void check(const char* error) {
  if (error != nullptr) {
    throw std::runtime_error(error);
  }
}

inline const OpenRegWrapperFunctions& functions() {
  static const OpenRegWrapperFunctions* const table = [] {
    using Get = const OpenRegWrapperFunctions* (*)();
    void* get = dlsym(RTLD_DEFAULT, OPENREG_WRAPPER_FUNCTIONS);
    if (get == nullptr) {
      // Python loads libraries with local symbols.
      if (void* library = dlopen("libtorch_openreg.so", RTLD_LAZY | RTLD_NOLOAD)) {
        get = dlsym(library, OPENREG_WRAPPER_FUNCTIONS);
        dlclose(library);
      }
    }
    if (get == nullptr) {
      throw std::runtime_error(
          "compiled code for openreg: expected libtorch_openreg.so to be loaded, got none");
    }
    const OpenRegWrapperFunctions* found = reinterpret_cast<Get>(get)();
    if (found->version != OPENREG_WRAPPER_VERSION) {
      throw std::runtime_error("compiled code for openreg: expected torch_openreg with version " +
                               std::to_string(OPENREG_WRAPPER_VERSION) +
                               " of the interface for wrappers, got " +
                               std::to_string(found->version));
    }
    return found;
  }();
  return *table;
}

template <typename T>
OpenRegValue pointerValue(const T* pointer, OpenRegValue::Kind kind) {
  OpenRegValue value;
  value.kind = pointer == nullptr ? OpenRegValue::Null : kind;
  value.pointer = pointer;
  return value;
}

inline OpenRegValue valueOf(const OpenRegValue& value) { return value; }

template <typename T>
OpenRegValue valueOf(const T& given) {
  OpenRegValue value;
  if constexpr (std::is_same_v<T, std::nullptr_t>) {
    value.kind = OpenRegValue::Null;
    value.pointer = nullptr;
  } else if constexpr (std::is_floating_point_v<T>) {
    value.kind = OpenRegValue::Number;
    value.number = given;
  } else if constexpr (!std::is_class_v<T> && std::is_convertible_v<T, int64_t>) {
    // Inductor writes the smallest int64_t as a literal of more bits.
    value.kind = OpenRegValue::Integer;
    value.integer = static_cast<int64_t>(given);
  } else if constexpr (std::is_convertible_v<const T&, AtenTensorHandle>) {
    value.kind = OpenRegValue::Tensor;
    value.pointer = static_cast<AtenTensorHandle>(given);
  } else {
    using Pointer = std::decay_t<const T>;
    using Pointee = std::remove_cv_t<std::remove_pointer_t<Pointer>>;
    const Pointer pointer = given;
    if constexpr (std::is_same_v<Pointee, char>) {
      return pointerValue(pointer, OpenRegValue::Text);
    } else if constexpr (std::is_same_v<Pointee, int64_t>) {
      return pointerValue(pointer, OpenRegValue::Integers);
    } else if constexpr (std::is_same_v<Pointee, int32_t>) {
      return pointerValue(pointer, OpenRegValue::Flags);
    } else if constexpr (std::is_same_v<Pointee, double>) {
      return pointerValue(pointer, OpenRegValue::Numbers);
    } else if constexpr (std::is_same_v<Pointee, AtenTensorHandle>) {
      return pointerValue(pointer, OpenRegValue::Tensors);
    } else if constexpr (std::is_same_v<Pointee, AtenTensorHandle*> ||
                         std::is_same_v<Pointee, const AtenTensorHandle*>) {
      return pointerValue(pointer, OpenRegValue::TensorPointers);
    } else if constexpr (std::is_pointer_v<Pointee>) {
      // An optional list.
      return pointer == nullptr ? valueOf(nullptr) : valueOf<Pointee>(*pointer);
    } else {
      return pointerValue(pointer, OpenRegValue::Other);
    }
  }
  return value;
}

template <typename T>
OpenRegValue hostScalar(const T& handle) {
  OpenRegValue value = valueOf(handle);
  value.kind = OpenRegValue::HostScalar;
  return value;
}

// Returns the success code of torch's C functions.
template <typename... Values>
AOTITorchError call(const char* name, const char* overload, const Values&... values) {
  const OpenRegValue packed[] = {valueOf(values)...};
  check(functions().call(name, overload, packed, sizeof...(values)));
  return AOTI_TORCH_SUCCESS;
}

template <typename T>
T argumentIn(const OpenRegSlot& slot) {
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<T>(const_cast<void*>(slot.pointer));
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(slot.integer);
  } else {
    return static_cast<T>(slot.number);
  }
}

template <typename... Parameters>
class Kernel {
 public:
  using Function = void (*)(Parameters...);

  template <Function kFunction>
  static void callFromSlots(const OpenRegSlot* slots) {
    callWith<kFunction>(slots, std::index_sequence_for<Parameters...>());
  }

 private:
  template <Function kFunction, size_t... kIndices>
  static void callWith([[maybe_unused]] const OpenRegSlot* slots,
                       std::index_sequence<kIndices...>) {
    kFunction(argumentIn<Parameters>(slots[kIndices])...);
  }
};

template <typename... Parameters>
Kernel<Parameters...> kernelOf(void (*)(Parameters...));

// A kernel in the wrapper's own library.
template <auto kFunction>
const void* getKernel(const char* name, const char* parameters) {
  static const void* const kernel = [&] {
    const void* found = nullptr;
    check(functions().get_kernel(name,
                                 &decltype(kernelOf(kFunction))::template callFromSlots<kFunction>,
                                 parameters, &found));
    return found;
  }();
  return kernel;
}

template <typename... Values>
void launch(const void* kernel, int32_t device, const Values&... values) {
  const OpenRegValue packed[] = {valueOf(values)...};
  check(functions().launch(kernel, device, packed, sizeof...(values)));
}

[[noreturn, maybe_unused]] inline void throwShimError(const char* call) {
  std::string text = torch_exception_get_what_without_backtrace();
  // An error that passes through Python, as do allocations of a first call, loses its text.
  if (text.empty()) {
    text = "the call failed";
  }
  const std::string function(call);
  throw std::runtime_error(text + " (in " + function.substr(0, function.find('(')) + ")");
}

}  // namespace
}  // namespace openreg_wrapper

// torch's macro reports the position in the generated code, but not the cause.
#undef AOTI_TORCH_ERROR_CODE_CHECK
#define AOTI_TORCH_ERROR_CODE_CHECK(call)   \
  if ((call) != AOTI_TORCH_SUCCESS) {       \
    openreg_wrapper::throwShimError(#call); \
  }
