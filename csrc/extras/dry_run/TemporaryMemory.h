// Temporary memory of CUDA's kernels, which they take from the caching allocator.
//
// Kernels here need none of it, or take it from the host. The rules follow from the sources of
// PyTorch that each of them names, and have not been compared with a GPU. Sorting on CUDA is done
// by CUB, whose own temporary memory is a second buffer for keys and for values, and a few
// kilobytes that are left out.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "torch_openreg/core/Observer.h"

namespace c10::openreg {

using BlockSizes = SmallVector<size_t, 8>;  // bytes

// What sizes depend on besides the operands.
struct GpuShape {
  int64_t multiprocessors = 0;
};

// The blocks that an operator's kernel has for a while, all at the same time.
using TemporaryMemoryRule = BlockSizes (*)(ArrayRef<Operand> operands, const GpuShape& gpu);

// Returns null for a kernel that has none, and for those without a rule.
TemporaryMemoryRule temporaryMemoryRule(std::string_view kernel);

}  // namespace c10::openreg
