// Positions in the program.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <string>
#include <utility>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Python frames, not symbolized yet. Equal stacks are one object.
//
// Note [Stacks of a backward pass]
// The threads of the autograd engine run no Python code, except for hooks. Their work is attributed
// to the line that started the backward pass. While that runs, its stack is debug information of
// the calling thread (c10::ThreadLocalDebugInfo), which the engine passes to its threads.
struct Stack {
  std::shared_ptr<const GatheredContext> here{};
};

// Frames as text written by Python's faulthandler; see Note [Frames of a host that faults].
struct DumpedFrames final : GatheredContext {
  explicit DumpedFrames(std::string text) : text(std::move(text)) {}
  const std::string text;
};

// Gathers a thread's Python frames, followed by those of the caller of the backward pass, if the
// thread is in one. Set once, by the bindings; without it stacks are empty.
using GatherFrames = Stack (*)(const Stack& backward);
OPENREG_EXPORT void setStackGatherer(GatherFrames gather);

// The calling thread's stack. Takes the GIL: no lock may be held.
Stack gatherStack();

// Between the two calls, the stack of the first one is that of a backward pass. They nest.
OPENREG_EXPORT void beginBackward();
OPENREG_EXPORT void endBackward();

// Whether the calling thread works for a backward pass that beginBackward() has announced.
OPENREG_EXPORT bool isInBackward();

}  // namespace c10::openreg
