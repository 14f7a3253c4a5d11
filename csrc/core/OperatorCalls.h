// What the fallback tells the sanitizer of streams. What holds for the functions of
// core/Sanitizer.h holds here.
#pragma once

#include <c10/util/ArrayRef.h>

#include "torch_openreg/core/Sanitizer.h"

namespace c10::openreg {

// As recordAccesses(), for a call of an operator of which no more than its schema is known. A
// schema does not say whether a kernel reads the contents of a tensor or looks at its sizes; of
// torch's operators that is known all the same.
void recordOperatorCall(const OpenRegStream& stream, const char* kernel,
                        ArrayRef<Operand> operands);

}  // namespace c10::openreg
