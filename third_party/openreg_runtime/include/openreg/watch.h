/* Watches: finding the host's accesses to pinned memory that a stream uses.
 *
 * Note [Watched memory]
 * Pinned memory that is allocated while watching is on is mapped twice, as device memory is (see
 * Note [Two addresses] in memory.h): the host has one address, copies, fills and kernels use the
 * other (orHostGetKernelPointer). A watch takes the host's access to some bytes away: nobody may
 * write them, or nobody may read or write them. A host that does so all the same faults; the fault
 * handler calls the watch's observer, gives the access back and lets the host go on, which notices
 * nothing.
 *
 * A page has one protection for all of its bytes. A fault at bytes that no watch is about opens the
 * whole page, and is counted: until a watch of these bytes is added, or orWatchRearm(), no access
 * to the page is seen.
 *
 * The operating system is not the host: a system call that is given watched bytes, such as read(2)
 * into them, fails with EFAULT and is not seen.
 *
 * A child forked from the process has one mapping of its own, in which nothing is watched. There
 * memory reads as the parent has it when the child first touches a page, and what the child writes,
 * it alone sees.
 *
 * None of it happens with OPENREG_MEMORY_PROTECTION=0.
 */
#ifndef OPENREG_WATCH_H
#define OPENREG_WATCH_H

#include <openreg/error.h>

/* Sees an access of the host to watched bytes, and returns whether that is what the watch is for:
 * then the watch is over, else the access counts as one beside it. `is_write` is 0 or 1.
 * Threads: The one that made the access, in a signal handler, and one call at a time in the
 * process. So it must be async-signal-safe, must not call this library, and must not touch pinned
 * memory.
 * Owns: `context` must live until orWatchRemove() returns. */
typedef int (*orWatchObserver)(void* context, const void* address, int is_write);

typedef struct orWatchCounts {
  unsigned long long watches; /* now, those that are over included */
  unsigned long long
      beside;              /* faults at bytes that no watch is about, each of which opened a page */
  unsigned long long lost; /* watches that ended since the operating system had no room for them */
} orWatchCounts;

OPENREG_EXTERN_C_BEGIN

/* From now on, orMallocHost gives memory that can be watched. It gives ordinary memory where that
 * cannot be had. */
OPENREG_API orError_t orWatchStart(void) OPENREG_CHECKED;

/* Ends that. Watches that there are go on. */
OPENREG_API orError_t orWatchStop(void) OPENREG_CHECKED;

/* A fault, and each free of pinned memory that can be watched, take time in proportion to the number
 * of watches in the process.
 *
 * Starts to watch `size` bytes of pinned memory: for the host's writes, and with `is_written`,
 * which says that a stream writes the bytes, for its reads, too. Stores a number for the watch, 0
 * if the memory cannot be watched: it was allocated while watching was off, or the operating system
 * has no room for one more.
 * Errors: orErrorInvalidValue if a pointer is null or the size is 0. */
OPENREG_API orError_t orWatchAdd(unsigned long long* watch, const void* pointer, size_t size,
                                 int is_written, orWatchObserver observer,
                                 void* context) OPENREG_CHECKED;

/* Ends a watch. When the call returns, its observer is not running and will not be called again.
 * Errors: orErrorInvalidValue if there is no such watch. */
OPENREG_API orError_t orWatchRemove(unsigned long long watch) OPENREG_CHECKED;

/* Watches the pages again that accesses beside the watched bytes have opened. */
OPENREG_API orError_t orWatchRearm(void) OPENREG_CHECKED;

/* Stores how watching went, since the process began. */
OPENREG_API orError_t orWatchGetCounts(orWatchCounts* counts) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
