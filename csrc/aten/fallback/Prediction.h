// Plans that are made before a kernel runs.
//
// Note [Predicted plans]
// A call whose signature has no plan must not wait for the data either. So its plan is predicted
// from the arguments' metadata:
//   - The CPU kernel runs on the calling thread, on dummies: host tensors of the operands' sizes,
//     strides and overlaps that are all zeros, or all ones if zeros are rejected. What it returns,
//     resizes and warns of is what the call will. This is exact, and costs the kernel's time, so it
//     is done if the operands are small.
//   - Otherwise the operator's kernel for the device "meta" describes the results. It computes
//     nothing, but the Meta kernels in Python take the GIL, and not all say what the CPU kernel
//     does; the fact "other_metadata" lists those that do not. As they check less than CPU kernels,
//     the CPU kernel also runs on smaller dummies, which shows whether it has the dtypes.
// If neither succeeds, the call runs on the calling thread, and its plan is learned: the arguments
// are bad, the CPU kernel takes neither zeros nor ones, or there is no Meta kernel.
//
// A plan that a run has refuted is not predicted a second time, but learned.
//
// Dummies are not observed, draw no numbers from the program's generators, and are no calls of
// operators for the profiler.
#pragma once

#include <c10/util/Exception.h>

#include <memory>
#include <vector>

#include "csrc/aten/fallback/BoxedCall.h"
#include "csrc/aten/fallback/CallPlan.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

struct Prediction {
  std::shared_ptr<const CallPlan> plan;  // null if the plan has to be learned
  std::vector<c10::Warning> warnings;    // of this call; those of later ones are in the plan
};

// For a call with a signature. Does not wait for the device, and may take the GIL: the caller holds
// no lock. Errors: none of the kernels' ones; the call's own run repeats them.
Prediction predictPlan(BoxedCall& call);

// Describes the results of a call without its data; null if it does not know the operator. Called
// for the calls below, before their Meta kernel.
using DescribeCall = std::shared_ptr<CallPlan> (*)(BoxedCall& call);

// Makes the results of such a call by other operators, which observers see, and replaces the
// arguments on the stack by them. Returns whether it did.
using ComposeCall = bool (*)(BoxedCall& call, torch::jit::Stack* stack);

// Null removes them.
OPENREG_EXPORT void setDescription(DescribeCall describe, ComposeCall compose);

// For a call that observers skip.
bool composeSkipped(BoxedCall& call, torch::jit::Stack* stack);

// A plan for a call that has no prediction and that observers skip, so that it cannot be learned.
// Errors: NotImplementedError if nothing describes the results; those of the Meta kernel.
std::shared_ptr<const CallPlan> planSkipped(BoxedCall& call);

}  // namespace at::openreg
