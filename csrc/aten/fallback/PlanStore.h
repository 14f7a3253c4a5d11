// The plans of all calls, by signature.
#pragma once

#include <cstddef>
#include <memory>

#include "csrc/aten/fallback/CallPlan.h"
#include "csrc/aten/fallback/CallSignature.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// Note [The store of plans]
// A program that keeps producing new signatures must neither fill the memory, nor have all of its
// calls wait at once because the store was cleared. So there are two generations of plans. A plan
// is inserted into the young generation, and moved there when it is used again. When the young
// generation is full, it becomes the old one, and the previous old one is dropped. Together they
// hold at most 2 * kMaxPlans plans, whose signatures and results take at most 2 * kMaxWords words.
// Dropped plans are freed a few at a time, with each new plan: freeing all of them takes 50 ms.

// The plan for a signature, which may have been refuted; null if there is none.
// Threads: any thread may call both functions.
std::shared_ptr<const CallPlan> findPlan(const CallSignature& signature);
void keepPlan(const CallSignature& signature, std::shared_ptr<const CallPlan> plan);

// The number of plans, and of the words of their signatures and results; and how many plans were
// made since the start.
struct PlanCount {
  size_t plans;
  size_t words;
  size_t made;
};
OPENREG_EXPORT PlanCount countPlans();

}  // namespace at::openreg
