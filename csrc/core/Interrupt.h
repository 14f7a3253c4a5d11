// Waits that a signal handler can end, such as that of Ctrl-C.
//
// Note [Interrupts]
// Python runs signal handlers in the main thread, between bytecodes. A wait for the device is a
// single call, so the waits of the main thread check every 50 ms whether a handler has raised an
// exception. If so, they throw it, and the work continues. Waits of other threads, of destructors,
// and for room in a stream's queue cannot be ended. The backend does not depend on Python: the
// bindings register the check.
#pragma once

#include <openreg/error.h>

#include <exception>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Returns the exception that the calling thread must throw, or null. Called without the GIL.
using InterruptCheck = std::exception_ptr (*)();

// Call once, before any wait. Without a check, waits cannot be ended.
OPENREG_EXPORT void setInterruptCheck(InterruptCheck check);

// During its lifetime, waits of the calling thread can be ended, if it is the main thread.
class OPENREG_EXPORT InterruptibleWait {
 public:
  InterruptibleWait();
  InterruptibleWait(const InterruptibleWait&) = delete;
  InterruptibleWait& operator=(const InterruptibleWait&) = delete;
  ~InterruptibleWait();

  // Returns the result of the wait, or throws the exception that ended it.
  orError_t finish(orError_t error);

 private:
  bool is_outermost_ = false;
};

// Calls a function of the runtime that waits, and throws the exception that ended the wait.
template <typename Wait>
orError_t waitInterruptibly(Wait wait) {
  InterruptibleWait interruptible;
  return interruptible.finish(wait());
}

}  // namespace c10::openreg
