// Errors of the CPU's kernels in the words of CUDA's.
//
// Note [Texts of CUDA]
// What the CPU's kernel refuses, CUDA's refuses as well, but some texts differ: they have the name
// of the kernel, such as "silu_cpu", or other words. With device type cuda, a call that runs the
// CPU's kernel on the calling thread raises CUDA's text. The tables were compared with the host
// code of CUDA's builds of torch, by calls of each operator with a dtype changed. The exception
// keeps its class.
#pragma once

#include <c10/util/Exception.h>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Throws the error that is being handled, with device type cuda in CUDA's words.
[[noreturn]] OPENREG_EXPORT void rethrowAsCuda(const c10::Error& error);

// Calls `run`, which runs a kernel of the CPU.
template <typename Run>
void inWordsOfCuda(const Run& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    rethrowAsCuda(error);
  }
}

}  // namespace at::openreg
