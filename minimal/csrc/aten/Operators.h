// Step 6 of docs/bring_up.md, what operators share. In full: include/torch_openreg/core/Launch.h.
#pragma once

#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

#include "../runtime/Event.h"

namespace chip {

using at::IntArrayRef, at::Tensor, torch::CppFunction;

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Of each operator, such as "aten::mul.out": how often it ran on the CPU, and the bytes of tensors
// that were copied to the host and back for it.
struct FallbackCounts {
  std::map<std::string, int64_t> calls, copied_bytes;
};
FallbackCounts fallbackCounts();

inline thread_local int64_t copied_bytes = 0;  // between host and devices, by this thread

// Where kernels find a tensor's elements: the host has another address for them, and cannot read
// them there.
template <typename Element>
Element* kernelAddress(const Tensor& tensor) {
  ptrdiff_t offset = 0;
  check(orGetKernelOffset(&offset));
  return reinterpret_cast<Element*>(static_cast<char*>(tensor.data_ptr()) + offset);
}

}  // namespace chip
