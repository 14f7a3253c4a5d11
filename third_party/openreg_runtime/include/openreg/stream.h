/* Streams: queues of work, each run by its own thread.
 *
 * Life: created without a thread; the first submission starts the worker; destruction lets
 * submitted work finish. The handle of a destroyed stream is recognized for the life of the
 * process: using it is orErrorInvalidResourceHandle.
 *
 * Note [Submit and retire]
 * A stream counts submitted and retired work. Work has retired when it has run and its
 * closure has been destroyed. "The stream is idle" means retired == submitted; an empty queue
 * proves nothing, since the last kernel may still be running.
 *
 * Note [Bounded queues]
 * A submission to a full queue waits until there is room. A queue is full when its 512 KiB are,
 * which is after about 1,600 launches with a closure of 200 bytes, or when its entries have
 * OPENREG_QUEUE_MEMORY of memory elsewhere: closures above OPENREG_MAX_INLINE_CLOSURE_SIZE, data of
 * the host's that a copy has taken along, and what orKernel's `owned_bytes` tells. By default these
 * are 64 MiB: a thousand closures of 64 KiB, so that a host that prepares large work runs as far
 * ahead as a worker needs, and all queues of a process with 32 busy streams have 2 GiB. An entry
 * that has more than the limit on its own is taken when no other has any.
 *
 * Work runs with the stream's device as the current device. It may not wait for its own
 * stream: that is orErrorNotPermitted. A kernel may submit work to other streams.
 */
#ifndef OPENREG_STREAM_H
#define OPENREG_STREAM_H

#include <openreg/error.h>

#define orStreamDefault 0x0u
#define orStreamNonBlocking 0x1u /* accepted; all streams are */

struct orActivityRecord;

#define OPENREG_IDLE_MILLISECONDS 1000

typedef orError_t (*orKernelFn)(void* closure);
typedef void (*orClosureMoveFn)(void* to, void* from);
typedef void (*orClosureDestroyFn)(void* closure);
typedef void (*orClosureDescribeFn)(const void* closure, struct orActivityRecord* record);
typedef size_t (*orClosureSizeFn)(const void* closure);
typedef void (*orHostFn)(void* user_data);

/* What the runtime needs to know about a kind of kernel. One static object per kind.
 *
 * Note [Kernels run again]
 * A launch runs its closure once; a closure captured into a graph runs once per launch of the
 * graph, one run after the other. So `run` must leave the closure unchanged and must not move
 * anything out of it. */
typedef struct orKernel {
  const char* name;           /* for errors and traces; not null, nor copied: it must stay alive */
  orKernelFn run;             /* returns orSuccess, or an error after orSetKernelError */
  orClosureMoveFn move;       /* moves a closure into fresh storage and destroys the old one;
                                 NULL: the closure may be moved by copying its bytes. In C++, it
                                 should not throw: the launch fails then (orErrorUnknown), and the
                                 closure is as `move` has left it, the caller's */
  orClosureDestroyFn destroy; /* NULL: nothing to destroy */
  /* NULL, or completes the record that a trace keeps of the work (trace.h): kind (kernel, memcpy
   * or memset), bytes, memcpy_kind and peer_device. Called before `run`, if the work is traced. */
  orClosureDescribeFn describe OPENREG_OPTIONAL;
  /* NULL, or returns how much memory a closure owns besides its own bytes; see
   * Note [Bounded queues]. Called before `move`, by the thread that submits. */
  orClosureSizeFn owned_bytes OPENREG_OPTIONAL;
} orKernel;

/* Closures up to this size are stored in the queue itself; larger ones cost one heap
 * allocation each. The limit keeps one launch from filling a noticeable part of a queue. */
#define OPENREG_MAX_INLINE_CLOSURE_SIZE 4096

/* The size of the largest closure: 1 GiB, far above what a launch encloses. */
#define OPENREG_MAX_CLOSURE_SIZE ((size_t)1 << 30)

/* Closures are stored at this alignment. */
#define OPENREG_CLOSURE_ALIGNMENT 16

/* Flags of orLaunchKernel. */
#define orLaunchDefault 0x0u
#define orLaunchSkip 0x1u /* keeps its place in the order, but `run` is not called */

OPENREG_EXTERN_C_BEGIN

/* Creates a stream on the current device with default flags and priority. What a stream costs: a
 * thread and a queue of 512 KiB of addresses from its first submission until it has been destroyed
 * and its work is done, and about 900 bytes for the life of the process, since its handle and its
 * completions stay valid. A program that creates streams without end grows by these. */
OPENREG_API orError_t orStreamCreate(orStream_t* stream) OPENREG_CHECKED;

/* Creates a stream on the current device. The priority is clamped to the device's range. It
 * is recorded and reported but has no effect: the operating system schedules the workers.
 * Errors: orErrorInvalidValue for unknown flags. */
OPENREG_API orError_t orStreamCreateWithPriority(orStream_t* stream, unsigned flags,
                                                 int priority) OPENREG_CHECKED;

/* Destroys a stream. Submitted work still runs; does not wait for it.
 * Errors: orErrorNotPermitted for a default stream, orErrorStreamCaptureUnsupported for one that
 * is capturing. */
OPENREG_API orError_t orStreamDestroy(orStream_t stream) OPENREG_CHECKED;

/* Stores the default stream of a device. */
OPENREG_API orError_t orGetDefaultStream(orStream_t* stream, int device) OPENREG_CHECKED;

/* Returns orSuccess if all submitted work is done, orErrorNotReady if not (not an error:
 * the thread's last error stays), else the stream's asynchronous error, which it clears. Order: see
 * Note [Schedules] in openreg/schedule.h. */
OPENREG_API orError_t orStreamQuery(orStream_t stream) OPENREG_CHECKED;

/* Waits until all work submitted before the call is done.
 * Errors: the stream's asynchronous error, which it clears. */
OPENREG_API orError_t orStreamSynchronize(orStream_t stream) OPENREG_CHECKED;

/* The same if that work is done. If not, returns orErrorNotReady at once (not an error, as above).
 * For a caller that has to prepare a wait, for example releases a lock. */
OPENREG_API orError_t orStreamTrySynchronize(orStream_t stream) OPENREG_CHECKED;

/* Enqueues a wait: later work on the stream starts after the latest record of the event, as
 * of this call, has completed. An event that was never recorded holds nothing back. The event
 * may be recorded again or destroyed at once. It may belong to another device.
 * Errors: orErrorInvalidValue unless flags is 0. */
OPENREG_API orError_t orStreamWaitEvent(orStream_t stream, orEvent_t event,
                                        unsigned flags) OPENREG_CHECKED;

/* Enqueues a kernel. `run` is called once, unless the stream holds an error, then `destroy`. If
 * the stream is capturing, `run` is called on each launch of the graph, and `destroy` with it.
 * Owns: takes over the closure on success only; on error it is unchanged and the caller's.
 * Closures still queued when the process exits are leaked. `closure_size` is at most
 * OPENREG_MAX_CLOSURE_SIZE (orErrorInvalidValue). A launch with orLaunchSkip is one in all but that
 * `run` is not called, in a graph neither; a trace has no record of it.
 * Threads: `run`, `describe` and `destroy` are called by the worker, `move` by this thread. No lock
 * is held during any of them. With OPENREG_LAUNCH_BLOCKING the closure stays where it is.
 * Errors: orErrorInvalidValue for unknown flags; with OPENREG_LAUNCH_BLOCKING, the kernel's own. */
OPENREG_API orError_t orLaunchKernel(const orKernel* kernel, void* closure, size_t closure_size,
                                     orStream_t stream, unsigned flags) OPENREG_CHECKED;

/* Enqueues a call of a host function. It is skipped if the stream holds an error.
 * Owns: the data must stay alive until the call, or as long as the graph it is captured into. */
OPENREG_API orError_t orLaunchHostFunc(orStream_t stream, orHostFn function,
                                       void* user_data) OPENREG_CHECKED;

/* Has the calling worker call a function when it has had nothing to do for a while, about
 * OPENREG_IDLE_MILLISECONDS, once until there is work again: for what its kernels keep and others
 * could use meanwhile, such as threads. NULL: none. The function submits no work and does not wait
 * for any. No lock is held during the call.
 * Errors: orErrorNotPermitted if the caller is no work on a stream. */
OPENREG_API orError_t orSetIdleFunction(void (*function)(void)) OPENREG_CHECKED;

/* Stores the device, the priority, or the flags the stream was created with. */
OPENREG_API orError_t orStreamGetDevice(orStream_t stream, int* device) OPENREG_CHECKED;
OPENREG_API orError_t orStreamGetPriority(orStream_t stream, int* priority) OPENREG_CHECKED;
OPENREG_API orError_t orStreamGetFlags(orStream_t stream, unsigned* flags) OPENREG_CHECKED;

/* Stores the stream's number: unique on its device, never used again, shown in errors and traces.
 * The default stream of each device has number 0, the others count from 1. */
OPENREG_API orError_t orStreamGetId(orStream_t stream, unsigned long long* id) OPENREG_CHECKED;

/* Stores the live stream of a device that has this number. Creates the device.
 * Errors: orErrorInvalidResourceHandle if no stream has it, or the stream has been destroyed. */
OPENREG_API orError_t orStreamGetById(orStream_t* stream, int device,
                                      unsigned long long id) OPENREG_CHECKED;

/* Returns orSuccess if the number is the handle of a live stream. Any value is a valid
 * argument; use it on handles that come from outside.
 * Errors: orErrorInvalidResourceHandle. */
OPENREG_API orError_t orStreamValidate(uintptr_t handle) OPENREG_CHECKED;

/* Stores 1 if the stream has been destroyed and its work is done, else 0. Does not wait. The one
 * function that takes the handle of a destroyed stream. */
OPENREG_API orError_t orStreamHasEnded(int* has_ended, orStream_t stream) OPENREG_CHECKED;

/* Stores 1 if no other stream of the process has work that is not done, else 0. */
OPENREG_API orError_t orStreamIsAlone(int* is_alone, orStream_t stream) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
