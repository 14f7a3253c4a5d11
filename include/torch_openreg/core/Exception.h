// Errors of the runtime, as torch exceptions.
//
// Note [From runtime error to Python exception]
//   orErrorMemoryAllocation   c10::OutOfMemoryError   torch.OutOfMemoryError
//   orErrorForked             c10::Error              RuntimeError, with torch.cuda's advice
//   orErrorInvalidDevice      c10::Error              RuntimeError
//   a kernel's exception      the type it had on the worker (KernelExceptionTag): an index that
//                             is out of range is an IndexError at the next synchronizing call
//   a KernelError             KernelAcceleratorError  torch.AcceleratorError with error_code
//   anything else             c10::AcceleratorError   torch.AcceleratorError with error_code
//
// Where the library serves the device type CUDA, all errors but orErrorForked are
// c10::AcceleratorError, with CUDA's texts; for those of kernels see Note [Errors of kernels on
// CUDA] in csrc/extras/cuda/CudaErrors.h.
#pragma once

#include <c10/util/Exception.h>
#include <openreg/error.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Throws the exception for a failed runtime call, with the text of the calling thread's last error,
// which it clears. `raised_by` completes "Raised by ...": the function that the user called, such
// as "torch.Event.synchronize", or the function of the runtime.
[[noreturn]] OPENREG_EXPORT void throwRuntimeError(orError_t error, const char* raised_by,
                                                   SourceLocation location);

// The same for the launch of a kernel. Not inline, because every launch contains a call of it.
[[noreturn]] OPENREG_EXPORT void throwLaunchError(orError_t error, const char* kernel,
                                                  SourceLocation location);

// Reports a failed runtime call as a warning. Never throws; for destructors and noexcept
// overrides.
OPENREG_EXPORT void warnRuntimeError(orError_t error, const char* raised_by) noexcept;

// Passes the exception that a kernel threw to the runtime, and returns the error code for the
// kernel. Call on the worker, inside the catch block.
OPENREG_EXPORT orError_t reportKernelException(std::exception_ptr exception) noexcept;

// What a closure returns that finds an error and does not throw; a launch drops other results. With
// code orSuccess there is no error.
struct KernelError {
  orError_t code = orSuccess;  // such as orErrorIllegalAddress or orErrorAssert
  std::string text = {};       // empty: that of the code
  std::string location = {};   // in the kernel's source, a file and a line; empty: unknown
  uintptr_t address = 0;       // the device address that the error is about; 0: none
};

// Passes it to the runtime, and returns its code. Call on the worker.
OPENREG_EXPORT orError_t reportKernelError(const KernelError& error) noexcept;

// torch.AcceleratorError, with what the failed kernel has said of its error.
class OPENREG_EXPORT KernelAcceleratorError : public c10::AcceleratorError {
 public:
  KernelAcceleratorError(SourceLocation location, std::string text, KernelError error,
                         std::string kernel);

  const std::string& kernel() const { return kernel_; }
  const KernelError& kernelError() const { return error_; }

 private:
  KernelError error_;
  std::string kernel_;
};

// How many exceptions with code 710, device-side assert, were thrown since the last call. Always 0
// for the device type openreg, where checks of kernels are no asserts.
OPENREG_EXPORT uint64_t takeAssertCount() noexcept;

namespace detail {

// The name of the runtime function that a piece of source calls, for error texts.
template <std::size_t Size>
struct CalledFunction {
  // NOLINTNEXTLINE(google-explicit-constructor): a string literal must convert
  consteval CalledFunction(const char (&source)[Size]) {
    std::size_t length = 0;
    while (source[length] != '(' && source[length] != '\0') {
      name[length] = source[length];
      ++length;
    }
    const bool is_runtime_call = length > 2 && source[0] == 'o' && source[1] == 'r' &&
                                 source[2] >= 'A' && source[2] <= 'Z' && source[length] == '(';
    if (!is_runtime_call) {
      throw "OPENREG_CHECK: expected a call of the runtime; OPENREG_CHECK_RESULT takes an error";
    }
  }
  char name[Size] = {};
};

}  // namespace detail

}  // namespace c10::openreg

// docs: openreg-check
// Throws if a call of the runtime has failed. `raised_by` is as for throwRuntimeError.
#define OPENREG_CHECK_RESULT(error, raised_by)                                     \
  do {                                                                             \
    const orError_t openreg_error_ = (error);                                      \
    if (C10_UNLIKELY(openreg_error_ != orSuccess)) {                               \
      ::c10::openreg::throwRuntimeError(openreg_error_, raised_by,                 \
                                        {__func__, __FILE__, uint32_t(__LINE__)}); \
    }                                                                              \
  } while (false)

// Calls the runtime, and throws on failure. Compiles only with a call.
#define OPENREG_CHECK(call)                                                       \
  do {                                                                            \
    static constexpr ::c10::openreg::detail::CalledFunction openreg_call_(#call); \
    OPENREG_CHECK_RESULT(call, openreg_call_.name);                               \
  } while (false)
// docs: end

// Calls the runtime, and warns on failure.
#define OPENREG_WARN_IF_FAILED(call)                                              \
  do {                                                                            \
    static constexpr ::c10::openreg::detail::CalledFunction openreg_call_(#call); \
    const orError_t openreg_error_ = (call);                                      \
    if (C10_UNLIKELY(openreg_error_ != orSuccess)) {                              \
      ::c10::openreg::warnRuntimeError(openreg_error_, openreg_call_.name);       \
    }                                                                             \
  } while (false)
