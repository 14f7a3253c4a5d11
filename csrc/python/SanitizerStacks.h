// Python stacks that are kept once, however many launches have them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

#include "csrc/sanitizer/Stack.h"

namespace torch_openreg {

// The calling thread's frames, then those of `backward`. A GatherFrames. Takes the GIL, if the
// thread runs Python.
c10::openreg::Stack gatherSharedStack(const c10::openreg::Stack& backward);

// A list of dicts with filename, line and name, innermost frame first; of frames that have been
// dumped one dict with their text. GIL: held.
pybind11::list describeFrames(const c10::openreg::Stack& stack);

struct SharedStackCounts {
  size_t stacks = 0;
  size_t bytes = 0;
};

// Of the stacks that are there. GIL: held.
SharedStackCounts sharedStackCounts();

// Drops those that nobody has. GIL: held.
void dropUnusedStacks();

}  // namespace torch_openreg
