/* openreg: accelerators made of CPU memory and worker threads.
 *
 * Every function in the headers below obeys the rules stated here unless its own comment
 * says otherwise.
 *
 * Threads   Any thread may call any function at any time.
 * Errors    Functions return an orError_t. On error no output is written and no work is
 *           submitted. The error also becomes this thread's last error (error.h).
 * Units     Sizes are bytes, times are nanoseconds, unless the name says otherwise.
 * Order     "Enqueues" means: the call returns before the work runs, and the work runs
 *           after everything submitted to the same stream earlier. "Waits" means: the
 *           calling thread blocks.
 * Streams   A null orStream_t means the default stream of the current device. The
 *           default stream is a stream like any other: it does not synchronize with the
 *           others.
 * Devices   The current device belongs to the calling thread and starts as 0.
 * Owns      Handles belong to their creator. Pointer arguments are read or written only
 *           during the call, unless "Owns:" says otherwise.
 * Fork      In a child forked from a process that used a device, every function that
 *           returns an orError_t and needs a device returns orErrorForked. Counting
 *           devices does not count as use. Ranges, marks, external ids and orGetSchedule work in
 *           a child, whatever other threads of the parent did at the fork.
 * Handles   A handle is a number that no other object of the process ever has. A value that is
 *           no handle of the kind that a function expects, or that of an object which has been
 *           destroyed, is orErrorInvalidResourceHandle, also in a function that destroys, and
 *           even if another thread destroys the object during the call. So are 1 and 2, which
 *           CUDA takes for its legacy and per-thread default streams.
 * Memory    If the host has no memory for what a function needs, it returns
 *           orErrorMemoryAllocation. No function aborts for that reason, and work that has been
 *           submitted runs.
 * Signals   The library handles SIGSEGV from the creation of the first device, or the first
 *           orWatchStart with memory, on, unless OPENREG_MEMORY_PROTECTION=0. A fault that is not
 *           its own, and a signal that a process sent, go to the handler that was there before,
 *           with its flags, its mask and the signal's siginfo, as from the kernel. A handler that
 *           the program installs later and that calls the one it replaced goes one step back.
 * Exit      Nothing has to be freed before the process ends. When exit() runs, work that
 *           is still queued is dropped, and so is work submitted later: threads that go on
 *           submitting meet no error, and closures are leaked. A function that would wait for
 *           such work returns orErrorNotPermitted.
 */
#ifndef OPENREG_OPENREG_H
#define OPENREG_OPENREG_H

#include <openreg/callable.h>
#include <openreg/device.h>
#include <openreg/error.h>
#include <openreg/event.h>
#include <openreg/fault.h>
#include <openreg/graph.h>
#include <openreg/ipc.h>
#include <openreg/memory.h>
#include <openreg/range.h>
#include <openreg/schedule.h>
#include <openreg/setting.h>
#include <openreg/stream.h>
#include <openreg/trace.h>
#include <openreg/types.h>
#include <openreg/watch.h>

#endif
