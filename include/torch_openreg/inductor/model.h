// Definitions that precede torch's runtime in programs compiled by AOTInductor, besides wrapper.h.
//
// Note [Weights of compiled programs]
// torch's runtime for compiled programs (aoti_runtime/model_base.h, model_container.h) supports the
// devices CPU, CUDA, XPU and MPS. It accesses MPS only through functions: for memory, copies and
// the device index. Programs for MPS do not run on our platforms, so this header replaces those
// functions by ours before the runtime is included. In such a program, device "mps:1" means device
// 1 of ours; only our runner sees that name.
#pragma once

#if defined(USE_CUDA) || defined(USE_XPU) || defined(USE_MPS)
#error "torch_openreg/inductor/model.h cannot be combined with torch's runtime of another device"
#endif
#define USE_MPS 1

#include <torch/csrc/inductor/aoti_torch/c/shim_mps.h>

#include "torch_openreg/inductor/wrapper.h"

namespace openreg_wrapper {
namespace {

inline AOTITorchError allocateWeights(void** memory, size_t size_bytes) {
  check(functions().allocate(size_bytes, memory));
  return AOTI_TORCH_SUCCESS;
}

inline AOTITorchError freeWeights(void* memory) {
  functions().free(memory);
  return AOTI_TORCH_SUCCESS;
}

// Copies from the weights that are part of the library.
inline AOTITorchError loadWeights(void* memory, size_t offset, size_t source_offset,
                                  size_t size_bytes, uint8_t* source) {
  check(functions().copy_from_host(memory, offset, source + source_offset, size_bytes));
  return AOTI_TORCH_SUCCESS;
}

// Copies from a tensor on the device.
inline AOTITorchError copyWeights(void* source, void* memory, size_t size_bytes,
                                  size_t source_offset, size_t offset) {
  if (source_offset != 0) {
    throw std::runtime_error(
        "update_constant_buffer: expected tensors that begin where their storage does, got one "
        "that begins at element " +
        std::to_string(source_offset));
  }
  check(functions().copy_on_device(memory, offset, source, size_bytes));
  return AOTI_TORCH_SUCCESS;
}

static_assert(std::is_same_v<decltype(allocateWeights), decltype(aoti_torch_mps_malloc)> &&
                  std::is_same_v<decltype(freeWeights), decltype(aoti_torch_mps_free)> &&
                  std::is_same_v<decltype(loadWeights), decltype(aoti_torch_mps_memcpy)> &&
                  std::is_same_v<decltype(copyWeights), decltype(aoti_torch_mps_copy_buffer)>,
              "a program on openreg: expected the functions of torch's runtime for MPS");

}  // namespace
}  // namespace openreg_wrapper

#define aoti_torch_device_type_mps aoti_torch_device_type_privateuse1
#define aoti_torch_mps_malloc openreg_wrapper::allocateWeights
#define aoti_torch_mps_free openreg_wrapper::freeWeights
#define aoti_torch_mps_memcpy openreg_wrapper::loadWeights
#define aoti_torch_mps_copy_buffer openreg_wrapper::copyWeights
