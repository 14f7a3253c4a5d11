// What counts as a mistake. docs/sanitizer.md describes it.
//
// Not thread-safe, as State is.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/sanitizer/AccessSet.h"
#include "csrc/sanitizer/Finding.h"
#include "csrc/sanitizer/Stack.h"
#include "csrc/sanitizer/State.h"
#include "csrc/sanitizer/Touch.h"
#include "csrc/sanitizer/Universe.h"

namespace c10::openreg {

// Of work that is about to be launched. Changes nothing but what a repetition would change as well.
std::vector<Finding> findAll(State& state, const Launch& launch, const std::vector<Touch>& touches);

// From here on the work counts as ordered behind all that was found. See
// Note [One finding for each mistake].
void takeAsOrdered(State& state, const Launch& launch, const std::vector<Touch>& touches);

// Of a replay: an allocation from outside that has been freed.
Finding freedInput(const State& state, const Launch& replay, const Capture::Kept& kept);

// Of each branch that the capture's first stream has not waited for, the last launch.
std::vector<Finding> findUnjoined(const State& state, Capture& capture);

// The latest access that the host's own one conflicts with, or null.
const Access* findHostConflict(const State& state, const Allocation& allocation,
                               const Access& access);

}  // namespace c10::openreg
