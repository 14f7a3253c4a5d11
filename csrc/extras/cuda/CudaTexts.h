// Note [Texts of CUDA]
// What the CPU's kernel refuses, CUDA's refuses as well, but some texts differ: they have the name
// of the kernel, such as "silu_cpu", or other words. With device type cuda, a call that runs the
// CPU's kernel on the calling thread raises CUDA's text. The tables were compared with the host
// code of CUDA's builds of torch, by calls of each operator with a dtype changed. The exception
// keeps its class.
#pragma once

#include <c10/util/Exception.h>

namespace at::openreg {

// Throws an error of the CPU's kernel in CUDA's words. Returns if it has none.
void throwInWordsOfCuda(const c10::Error& error);

}  // namespace at::openreg
