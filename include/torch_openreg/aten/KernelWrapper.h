// What surrounds the kernels of operators: the one line in which launches depend on the CPU.
//
// A launch keeps a KernelWrapper with its kernel, and calls
//   KernelWrapper::current()       on the calling thread, before the launch
//   KernelWrapper::noteLaunched()  on the calling thread, after the launch
//   enter()                        on the worker, before each run of the kernel
// A function of the CPU runs in an environment. A kernel of a chip needs none: for it, the alias is
// PlainKernel, and nothing of aten/cpu is included.
#pragma once

#include "torch_openreg/aten/KernelEnvironment.h"

namespace at::openreg {

// Nothing surrounds the kernel.
struct PlainKernel {
  static PlainKernel current() { return {}; }
  static void noteLaunched() {}
  void enter() const {}
};

using KernelWrapper = KernelEnvironment;

}  // namespace at::openreg
