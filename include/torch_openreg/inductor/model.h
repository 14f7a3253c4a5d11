// What programs that AOTInductor compiles have before torch's runtime for them, besides wrapper.h.
//
// Note [Weights of compiled programs]
//     torch's runtime for compiled programs (aoti_runtime/model_base.h, model_container.h) knows
//     the devices CPU, CUDA, XPU and MPS. Of these, MPS is the one that the runtime reaches through
//     functions alone: for memory, copies and its number. No program for MPS runs where we do, so
//     its functions are replaced by ours before the runtime is included. A program that stands
//     on "mps:1" there is on our device 1; nobody but our runner sees that name.
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

// From the weights that are a part of the library.
inline AOTITorchError loadWeights(void* memory, size_t offset, size_t source_offset,
                                  size_t size_bytes, uint8_t* source) {
  check(functions().copy_from_host(memory, offset, source + source_offset, size_bytes));
  return AOTI_TORCH_SUCCESS;
}

// From a tensor on the device.
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
