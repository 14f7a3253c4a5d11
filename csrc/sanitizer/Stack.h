// Where in the program something happened.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <string>
#include <utility>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Python's frames, not looked up yet. Equal stacks are one object.
//
// Note [Stacks of a backward pass]
// The threads of the autograd engine run no Python, but for hooks. What they do happens in the
// program where it asked for the backward pass. While that runs, its stack is debug information of
// the asking thread (c10::ThreadLocalDebugInfo), which the engine passes on to its threads.
struct Stack {
  std::shared_ptr<const GatheredContext> here{};
};

// Frames as Python's faulthandler writes them; see Note [Frames of a host that faults].
struct DumpedFrames final : GatheredContext {
  explicit DumpedFrames(std::string text) : text(std::move(text)) {}
  const std::string text;
};

// What gathers a thread's Python frames, with those of who asked for the backward pass, if it is in
// one, behind them. The gatherer is set once, by the bindings; without it stacks are empty.
using GatherFrames = Stack (*)(const Stack& backward);
OPENREG_EXPORT void setStackGatherer(GatherFrames gather);

// The calling thread's. Takes the GIL: no lock may be held.
Stack gatherStack();

// Between the two calls, the stack of the first is that of a backward pass. They nest.
OPENREG_EXPORT void beginBackward();
OPENREG_EXPORT void endBackward();

}  // namespace c10::openreg
