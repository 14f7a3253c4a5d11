// Errors of the runtime, as torch exceptions.
//
// Note [From runtime error to Python exception]
//   orErrorMemoryAllocation   c10::OutOfMemoryError   torch.OutOfMemoryError
//   orErrorForked             c10::Error              RuntimeError, with torch.cuda's advice
//   orErrorInvalidDevice      c10::Error              RuntimeError
//   a kernel's exception      the type it had on the worker (KernelExceptionTag): an index that
//                             is out of range is an IndexError at the next synchronizing call
//   anything else             c10::AcceleratorError   torch.AcceleratorError with error_code
#pragma once

#include <c10/util/Exception.h>
#include <openreg/error.h>

#include <exception>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Throws the exception for a failed runtime call. `call` is its source text.
[[noreturn]] OPENREG_EXPORT void throwRuntimeError(orError_t error, const char* call,
                                                   SourceLocation location);

// Reports a failed runtime call as a warning. Never throws; for destructors and noexcept
// overrides.
OPENREG_EXPORT void warnRuntimeError(orError_t error, const char* call) noexcept;

// Hands the exception that a kernel threw to the runtime and returns the code to fail with.
// Called in the worker, inside the catch block.
OPENREG_EXPORT orError_t reportKernelException(std::exception_ptr exception) noexcept;

}  // namespace c10::openreg

// docs: openreg-check
// Calls the runtime and throws if it fails.
#define OPENREG_CHECK(call)                                                        \
  do {                                                                             \
    const orError_t openreg_error_ = (call);                                       \
    if (C10_UNLIKELY(openreg_error_ != orSuccess)) {                               \
      ::c10::openreg::throwRuntimeError(openreg_error_, #call,                     \
                                        {__func__, __FILE__, uint32_t(__LINE__)}); \
    }                                                                              \
  } while (false)
// docs: end

// Calls the runtime and warns if it fails.
#define OPENREG_WARN_IF_FAILED(call)                           \
  do {                                                         \
    const orError_t openreg_error_ = (call);                   \
    if (C10_UNLIKELY(openreg_error_ != orSuccess)) {           \
      ::c10::openreg::warnRuntimeError(openreg_error_, #call); \
    }                                                          \
  } while (false)
