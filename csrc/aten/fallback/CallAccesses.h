// Reports the memory accesses of a call of the fallback to observers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "csrc/aten/fallback/BoxedCall.h"
#include "csrc/aten/fallback/FallbackOperator.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {

// The schema says which arguments are written. Results that are not arguments are written, too.
// Errors and verdict: see torch_openreg/core/Observer.h.
c10::openreg::Verdict observeCall(const BoxedCall& call, c10::ArrayRef<c10::IValue> results);

// The same for a result of a call that the calling thread runs.
c10::openreg::Verdict observeResult(const FallbackOperator& known, c10::Device device,
                                    const Tensor& result);

}  // namespace at::openreg
