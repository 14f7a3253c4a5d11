// The interface between a kernel that Inductor generates and the backend. This text becomes part of
// the kernel's source, which is compiled without torch's headers and ours.
#pragma once

#include <cstdint>

// One argument of a kernel.
union OpenRegSlot {
  const void* pointer;  // a kernel address, or the address of the slot with the value
  int64_t integer;
  double number;
  alignas(16) unsigned char value[16];  // of a CPU tensor of one element
};

// Calls the kernel with its arguments. Each kernel's library exports a function with this name.
using OpenRegKernelCall = void (*)(const OpenRegSlot* arguments);
#define OPENREG_KERNEL_CALL "openreg_call_kernel"
