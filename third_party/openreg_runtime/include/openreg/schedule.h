/* Schedules: which of the streams that could run proceeds next.
 *
 * Note [Schedules]
 * Streams run concurrently, so a program that fails to order them is right most of the time. A
 * schedule other than "free" enforces one legal order: one that the program must expect, because
 * it is restricted only by what CUDA guarantees.
 *
 *   free    each stream runs as soon as it can. The default; costs nothing
 *   lazy    a stream runs only when a thread waits for it, and no further
 *   eager   each submission is waited for, so that all work runs in the order of submission
 *   a seed  a number. Streams and the host have priorities, and of those that could proceed, the
 *           one with the highest does: the host's submissions return when nothing with a higher
 *           priority is left to run. At two random points, the one that proceeds gets the lowest
 *           priority. This is PCT (Burckhardt and others, A Randomized Scheduler with
 *           Probabilistic Guarantees of Finding Bugs), except that the host has the highest
 *           priority half of the time: for most mistakes, one stream has to be slow at one point.
 *           When the host has waited and nothing is left to run, all priorities are drawn anew
 *
 * With all but the first, one piece of work runs at a time, and the order follows only from the
 * schedule and the order of submissions: a program with one host thread gets the same order each
 * time.
 *
 * These calls count as waiting: synchronizing with a stream, an event or a device, copies and fills
 * that wait, allocating or freeing where that waits, and submitting to a full queue. Queries count
 * as well: a query returns the current state, then runs the work that it was about, so that a loop
 * of queries ends. Destroying a stream runs its work.
 *
 * Work that may wait for something outside of the runtime must run under every schedule, without a
 * thread that waits for it: host functions, graphs with host functions, and waits for another
 * process's event. It begins as soon as it can, with all earlier work of its stream, and so does
 * the work before the record of an interprocess event. The program determines when such work ends;
 * later work of its stream follows the schedule.
 *
 * A kernel that waits for the host or for another stream's kernel, which CUDA does not guarantee to
 * work, waits forever. So does a host that polls memory until a kernel has changed it, under a
 * schedule in which no thread waits for the kernel.
 */
#ifndef OPENREG_SCHEDULE_H
#define OPENREG_SCHEDULE_H

#include <openreg/error.h>
#include <stddef.h>

/* Enough for the text of any schedule, with its terminating zero. */
#define OPENREG_SCHEDULE_SIZE 24

OPENREG_EXTERN_C_BEGIN

/* Waits for all devices, then changes the schedule of all streams: "free", "lazy", "eager", or a
 * number below 2^64. The process starts with OPENREG_SCHEDULE. A seed starts from its beginning,
 * even if it was the schedule before.
 * Threads: no other thread may submit work during the call.
 * Errors: orErrorInvalidValue for another text; orErrorNotPermitted in work on a stream, or if
 * another thread submitted work meanwhile. Asynchronous errors are kept. */
OPENREG_API orError_t orSetSchedule(const char* schedule) OPENREG_CHECKED;

/* Stores the text of the schedule. */
OPENREG_API orError_t orGetSchedule(char* schedule, size_t size) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
