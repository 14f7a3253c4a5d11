// Waits that a signal's handler may end: Ctrl-C.
//
// Note [Interrupts]
// Python runs the handlers of signals in the main thread, between bytecodes. A wait for the device
// is one call, so the main thread's waits ask every 50 ms whether a handler has raised. If so, they
// throw what it raised, and the work that was waited for goes on. Waits of the other threads, of
// destructors, and for room in a stream's queue are not ended. The backend knows no Python: the
// bindings provide the check.
#pragma once

#include <openreg/error.h>

#include <exception>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Returns what the calling thread is to throw, or null. Called without the GIL.
using InterruptCheck = std::exception_ptr (*)();

// Called once, before any wait. Without a check nothing ends a wait.
OPENREG_EXPORT void setInterruptCheck(InterruptCheck check);

// Until it is destroyed, the calling thread's waits may be ended, if that is the main thread.
class OPENREG_EXPORT InterruptibleWait {
 public:
  InterruptibleWait();
  InterruptibleWait(const InterruptibleWait&) = delete;
  InterruptibleWait& operator=(const InterruptibleWait&) = delete;
  ~InterruptibleWait();

  // Passes the result of the wait on, or throws what has ended it.
  orError_t finish(orError_t error);

 private:
  bool is_outermost_ = false;
};

// Calls a function of the runtime that waits, and throws what has ended the wait.
template <typename Wait>
orError_t waitInterruptibly(Wait wait) {
  InterruptibleWait interruptible;
  return interruptible.finish(wait());
}

}  // namespace c10::openreg
