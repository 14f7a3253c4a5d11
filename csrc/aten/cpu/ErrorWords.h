// Errors of the CPU's kernels in the words of the device type.
//
// A kernel of the CPU that runs on the calling thread raises the CPU's text, unless a part of the
// library has installed a function that knows the words of the device type in use.
#pragma once

#include <c10/util/Exception.h>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Throws the error that is being handled in other words, or returns if it has none.
using ErrorWords = void (*)(const c10::Error& error);

// Installs it, before the static objects of the library (csrc/core/DeviceForm.h).
void setErrorWords(ErrorWords words) noexcept;

// Throws the error that is being handled, in the words of the device type.
[[noreturn]] OPENREG_EXPORT void rethrowInOwnWords(const c10::Error& error);

// Calls `run`, which runs a kernel of the CPU.
template <typename Run>
void inOwnWords(const Run& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    rethrowInOwnWords(error);
  }
}

}  // namespace at::openreg
