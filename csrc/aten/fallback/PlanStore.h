// The plans of all calls, by signature.
#pragma once

#include <cstddef>
#include <memory>

#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/CallSignature.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Note [The store of plans]
// A program that goes on finding new signatures must neither fill the memory nor wait for all of
// its calls at once because the store was emptied. So there are two generations of plans: a plan
// is kept in the young one, or gets there when it is used again; when the young one is full, it
// becomes the old one, and the plans that nobody has used since the last time go. Together they
// hold at most 2 * kMaxPlans plans, and signatures and results of at most 2 * kMaxWords words.
// The plans that go are freed a few at a time, with each new one, as all of them are 50 ms.

// The plan under a signature; null if it has none, or one that has proved wrong.
// Threads: any may call both functions.
std::shared_ptr<const CallPlan> findPlan(const CallSignature& signature);
void keepPlan(const CallSignature& signature, std::shared_ptr<const CallPlan> plan);

// How many plans there are, and how many words their signatures and results take.
struct PlanCount {
  size_t plans;
  size_t words;
};
OPENREG_EXPORT PlanCount countPlans();

}  // namespace at::openreg
