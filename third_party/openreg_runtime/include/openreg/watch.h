/* Watches: detect the host's accesses to pinned memory that a stream uses.
 *
 * Note [Watched memory]
 * Pinned memory that is allocated while watching is on is mapped twice, as device memory is (see
 * Note [Two addresses] in memory.h): the host has one address; copies, fills and kernels use the
 * other (orHostGetKernelPointer). A watch forbids the host to write some bytes, or to read or write
 * them. An access of the host then faults; the fault handler calls the watch's observer, restores
 * the access and continues the host, for which this is transparent.
 *
 * A page has one protection for all of its bytes. A fault at bytes without a watch opens the whole
 * page, and is counted: until a watch of these bytes is added, or orWatchRearm() is called,
 * accesses to the page are not detected.
 *
 * Accesses by the operating system are not detected: a system call on watched bytes, such as
 * read(2) into them, fails with EFAULT.
 *
 * A child forked from the process has a mapping of its own, in which nothing is watched. There,
 * memory has the parent's contents at the child's first access to a page, and the child's writes
 * are not visible to other processes.
 *
 * With OPENREG_MEMORY_PROTECTION=0, watching is off.
 */
#ifndef OPENREG_WATCH_H
#define OPENREG_WATCH_H

#include <openreg/error.h>

/* Called for an access of the host to watched bytes. Returns whether the watch was for that access:
 * if so, the watch ends, otherwise the access counts as one to other bytes. `is_write` is 0 or 1.
 * Threads: the thread that made the access, in a signal handler; one call at a time in the process.
 * So it must be async-signal-safe, must not call this library, and must not access pinned memory.
 * Owns: `context` must live until orWatchRemove() returns. */
typedef int (*orWatchObserver)(void* context, const void* address, int is_write);

typedef struct orWatchCounts {
  unsigned long long watches; /* now, those that are over included */
  unsigned long long
      beside;              /* faults at bytes that no watch is about, each of which opened a page */
  unsigned long long lost; /* watches that ended since the operating system had no room for them */
} orWatchCounts;

OPENREG_EXTERN_C_BEGIN

/* From now on, orMallocHost returns memory that can be watched, or ordinary memory if that is not
 * available. */
OPENREG_API orError_t orWatchStart(void) OPENREG_CHECKED;

/* Ends that. Existing watches stay active. */
OPENREG_API orError_t orWatchStop(void) OPENREG_CHECKED;

/* A fault, and each free of pinned memory that can be watched, take time in proportion to the
 * number of watches in the process.
 *
 * Starts to watch `size` bytes of pinned memory for the host's writes and, if `is_written` states
 * that a stream writes the bytes, for its reads as well. Stores a number for the watch, or 0 if the
 * memory cannot be watched: it was allocated while watching was off, or the operating system has no
 * room for another watch.
 * Errors: orErrorInvalidValue if a pointer is null or the size is 0. */
OPENREG_API orError_t orWatchAdd(unsigned long long* watch, const void* pointer, size_t size,
                                 int is_written, orWatchObserver observer,
                                 void* context) OPENREG_CHECKED;

/* Ends a watch. When the call returns, its observer is not running and will not be called again.
 * Errors: orErrorInvalidValue if there is no such watch. */
OPENREG_API orError_t orWatchRemove(unsigned long long watch) OPENREG_CHECKED;

/* Watches the pages again that were opened by accesses to bytes that are not watched. */
OPENREG_API orError_t orWatchRearm(void) OPENREG_CHECKED;

/* Stores counts of watching since the process began. */
OPENREG_API orError_t orWatchGetCounts(orWatchCounts* counts) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
