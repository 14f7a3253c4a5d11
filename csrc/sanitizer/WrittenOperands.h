// What operators do with the old contents of what they write.
#pragma once

#include <string_view>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Whether an operator with this name is torch's own.
bool isOfTorch(std::string_view kernel);

// Whether an operator with this name, such as "aten::fill_.Scalar", or "aten::scatter.src" if that
// is called in place, reads nothing of what it writes: each element is new, or as it was.
// test/sanitizer/test_uninitialized.py derives it. Of operators that are not torch's nobody knows.
OPENREG_EXPORT bool onlyWrites(std::string_view kernel);

// Whether the name is that of an operator in place.
bool isInPlace(std::string_view kernel);

// Whether an operator with this name looks, in one of its modes at least, at nothing of a first
// argument but its sizes.
OPENREG_EXPORT bool readsOnlySizes(std::string_view kernel);

}  // namespace c10::openreg
