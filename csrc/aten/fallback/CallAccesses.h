// What a call of the fallback reads and writes, for the sanitizer of streams.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "csrc/aten/fallback/FallbackOperator.h"

namespace at::openreg {

// Tells the sanitizer, which is on, of a call: the schema says which arguments are written, and all
// results that are not arguments are. Errors: see torch_openreg/core/Sanitizer.h.
void recordCall(const FallbackOperator& known, const c10::FunctionSchema& schema,
                c10::Device device, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<c10::IValue> results);

// The same for a result of a call that the calling thread runs.
void recordResult(const FallbackOperator& known, c10::Device device, const Tensor& result);

}  // namespace at::openreg
