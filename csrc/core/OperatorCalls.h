// The fallback's reports to the sanitizer. The rules of core/Sanitizer.h apply.
#pragma once

#include <c10/util/ArrayRef.h>

#include "torch_openreg/core/Sanitizer.h"

namespace c10::openreg {

// As recordAccesses(), for a call of an operator of which only the schema is known. A schema does
// not state whether a kernel reads the contents of a tensor or only its sizes; for torch's
// operators, the sanitizer has a list.
void recordOperatorCall(const OpenRegStream& stream, const char* kernel,
                        ArrayRef<Operand> operands);

}  // namespace c10::openreg
