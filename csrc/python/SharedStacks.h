// Python stacks that are stored once, however many launches or blocks of memory share them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

#include "csrc/core/Stack.h"

namespace torch_openreg {

// The calling thread's frames, followed by those of `backward`. A GatherFrames function. Takes the
// GIL if the thread runs Python.
c10::openreg::Stack gatherSharedStack(const c10::openreg::Stack& backward);

// A list of dicts with filename, line and name, innermost frame first; for dumped frames, one dict
// with their text. GIL: held.
pybind11::list describeFrames(const c10::openreg::Stack& stack);

struct SharedStackCounts {
  size_t stacks = 0;
  size_t bytes = 0;
};

// The number of existing stacks. GIL: held.
SharedStackCounts sharedStackCounts();

// Drops stacks without other owners. GIL: held.
void dropUnusedStacks();

}  // namespace torch_openreg
