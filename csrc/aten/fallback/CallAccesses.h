// The memory accesses of a call of the fallback, for the sanitizer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "csrc/aten/fallback/FallbackOperator.h"

namespace at::openreg {

// Reports a call to the sanitizer, which must be on: the schema states which arguments are written;
// results that are not arguments are written. Errors: see torch_openreg/core/Sanitizer.h.
void recordCall(const FallbackOperator& known, const c10::FunctionSchema& schema,
                c10::Device device, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<c10::IValue> results);

// Reports a result of a call that runs on the calling thread.
void recordResult(const FallbackOperator& known, c10::Device device, const Tensor& result);

}  // namespace at::openreg
