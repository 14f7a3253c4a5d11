// The choice of an algorithm for scaled dot product attention.
//
// With the device type CUDA, it is that of CUDA on a device of the capability that the setting
// OPENREG_CUDA_CAPABILITY gives, with flash attention, memory-efficient attention and cuDNN. The
// order, the switches and the warnings are torch's. With the device type openreg, it is the CPU's:
// its fused algorithm stands for all that torch.nn.attention.sdpa_kernel can name, and it may have
// dropout and a bias that needs a gradient if the program forbids the composition.
#pragma once

#include <ATen/native/transformers/sdp_utils_cpp.h>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Whether CUDA would run the algorithm, one of flash, efficient and cuDNN attention, on these
// tensors. With `warns`, the reason against it becomes a warning, in CUDA's words.
OPENREG_EXPORT bool canUseAttention(SDPBackend algorithm, const sdp::sdp_params& params,
                                    bool warns);

// The number of bits that an address or a stride of memory-efficient attention is a multiple of,
// in elements; 1 if any will do.
int64_t alignmentOfEfficientAttention(ScalarType type);

// Whether the posed capability is at least this.
bool hasCapability(int major, int minor);

}  // namespace at::openreg
