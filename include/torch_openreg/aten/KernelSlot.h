// The arguments of a kernel that is loaded at run time. This text may become part of the kernel's
// source, which is compiled without torch's headers and ours.
#pragma once

#include <cstdint>

// One argument of a kernel.
union OpenRegSlot {
  const void* pointer;  // a kernel address, or the address of the slot with the value
  int64_t integer;
  double number;
  alignas(16) unsigned char value[16];  // of a CPU tensor of one element
};
