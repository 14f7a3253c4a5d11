// Waits that a signal handler can end, such as that of Ctrl-C.
//
// Note [Interrupts]
// Python runs signal handlers in the main thread, between bytecodes. A wait for the device is a
// single call, so the waits of the main thread check every 50 ms whether a handler has raised an
// exception. If so, they throw it, and the work continues. Waits of other threads, of destructors,
// and for room in a stream's queue cannot be ended. The backend does not depend on Python: the
// bindings register the check.
#pragma once

#include <c10/util/FunctionRef.h>
#include <openreg/error.h>

#include <exception>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Returns the exception that the calling thread must throw, or null. Called without the GIL.
using InterruptCheck = std::exception_ptr (*)();

// Call once, before any wait. Without a check, waits cannot be ended.
OPENREG_EXPORT void setInterruptCheck(InterruptCheck check);

// Calls a function of the runtime that waits, and returns its result. In the main thread, the check
// can end the wait: throws its exception then.
OPENREG_EXPORT orError_t waitInterruptibly(c10::function_ref<orError_t()> wait);

}  // namespace c10::openreg
