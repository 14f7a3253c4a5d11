/* Faults: accesses that the machine refuses (SIGSEGV), by the host or by a kernel.
 *
 * A host that touches device memory faults, and the library names the allocation before the process
 * ends (memory.h, Note [Two addresses]). Handlers of this header are asked before: one may repair
 * what the access needs, such as the protection of a page, or send the thread elsewhere.
 */
#ifndef OPENREG_FAULT_H
#define OPENREG_FAULT_H

#include <openreg/error.h>

typedef enum orFaultAccess {
  orFaultRead = 0,
  orFaultWrite = 1,
  orFaultUnknown = 2 /* the machine does not say */
} orFaultAccess;

typedef struct orFault {
  const void* address; /* that was accessed */
  orFaultAccess access;
  void* machine; /* the ucontext_t of the thread: its registers, with which it goes on */
} orFault;

/* Returns nonzero if it has dealt with the fault: the thread goes on, as a rule by repeating the
 * access. 0 leaves the fault to the next handler, at last to the library and to handlers of the
 * signal that others have installed.
 * Threads: called on the thread that faults, in the handler of the signal: it may use what is
 * async-signal-safe, which the library is not. It may leave by siglongjmp. */
typedef int (*orFaultFn)(void* context, const orFault* fault);

OPENREG_EXTERN_C_BEGIN

/* From now on, a handler is asked about each fault of the process, before those that were added for
 * the first time before it. Handlers of the signal that were installed before are called after it,
 * those that are installed later before it. Owns: the context is the caller's, and lives until the
 * process ends, as a fault may be asking about it when the handler is removed.
 * Errors: orErrorInvalidValue if the handler is null or was added with this context before;
 * orErrorOperatingSystem if the signal cannot be handled. */
OPENREG_API orError_t orFaultHandlerAdd(orFaultFn handler, void* context) OPENREG_CHECKED;

/* Ends that. The handler may still be running on other threads.
 * Errors: orErrorInvalidValue if it was not added with this context. */
OPENREG_API orError_t orFaultHandlerRemove(orFaultFn handler, void* context) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
