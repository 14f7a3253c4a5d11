// How operators use the old contents of tensors that they write.
#pragma once

#include <string_view>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Whether the operator is one of torch's.
bool isOfTorch(std::string_view kernel);

// Whether the operator, such as "aten::fill_.Scalar", or "aten::scatter.src" called in place, does
// not read the old contents of what it writes: each element is new or unchanged.
// test/extras/sanitizer/test_uninitialized.py derives the list. It is unknown for operators outside
// torch.
OPENREG_EXPORT bool onlyWrites(std::string_view kernel);

// Whether the operator, in at least one of its modes, reads only the sizes of its first argument.
OPENREG_EXPORT bool readsOnlySizes(std::string_view kernel);

}  // namespace c10::openreg
