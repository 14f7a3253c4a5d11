/* Schedules: which of the streams that could run gets on next.
 *
 * Note [Schedules]
 * Streams run side by side, so a program that forgets to order them is right most of the time. A
 * schedule other than "free" makes one legal order certain: one that the program has to expect, as
 * only what CUDA promises restricts it.
 *
 *   free    each stream runs as soon as it can. The default; costs nothing
 *   lazy    a stream runs when somebody waits for it, and no further
 *   eager   each submission is waited for, so that all work runs in the order of submission
 *   a seed  a number. Streams and the host have priorities, and the one with the highest of those
 *           that could go on does: the host's submissions return when nothing with a higher
 *           priority is left to run. At two random points whoever goes on gets the lowest priority.
 *           That is PCT (Burckhardt and others, A Randomized Scheduler with Probabilistic
 *           Guarantees of Finding Bugs), but that the host has the highest priority half of the
 *           time: for most mistakes, one stream has to be slow at one point. When the host has
 * waited and nothing is left to run, all priorities are drawn anew
 *
 * With all but the first, one piece of work runs at a time, and which one follows from the schedule
 * and the order of submissions alone: a program whose host has one thread gets the same order each
 * time.
 *
 * Waiting is to synchronize with a stream, an event or a device, to copy or fill with waiting, to
 * allocate or free where that waits, and to submit to a full queue. To ask counts, too: a query
 * says how things are, then lets run what it was about, so that a loop of queries ends. Destroying
 * a stream lets its work run.
 *
 * What may wait for something that the runtime does not see has to run whatever the schedule is,
 * and nobody waits for it: host functions, graphs with host functions, and waits for another
 * process's event. They begin as soon as they can, with all that comes before them on their stream,
 * as does what comes before the record of an interprocess event. When such a piece ends is up to
 * the program; what follows it on its stream is as the schedule says.
 *
 * A kernel that waits for the host or for another stream's kernel, which CUDA does not promise to
 * work, waits forever. So does a host that looks at memory until a kernel has changed it, with a
 * schedule under which nobody waits for the kernel.
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
 * somebody submitted work meanwhile. Asynchronous errors stay where they are. */
OPENREG_API orError_t orSetSchedule(const char* schedule) OPENREG_CHECKED;

/* Stores the text of the schedule. */
OPENREG_API orError_t orGetSchedule(char* schedule, size_t size) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
