/* Events: markers in streams, to wait for and to measure time with.
 *
 * Note [One completion per record]
 * Each record creates its own completion object. Query, wait and synchronize look up the
 * latest record at the time of the call and use only its completion. So recording again
 * neither completes nor blocks an earlier wait.
 *
 * An event is bound to no device before its first record; a later record may be on a stream
 * of another device.
 */
#ifndef OPENREG_EVENT_H
#define OPENREG_EVENT_H

#include <openreg/error.h>

#define orEventDefault 0x0u
#define orEventBlockingSync 0x1u /* accepted; waits always block */
#define orEventDisableTiming 0x2u
#define orEventInterprocess 0x4u /* may be shared (ipc.h); needs orEventDisableTiming */

OPENREG_EXTERN_C_BEGIN

/* Creates an event. Creates no device. With orEventDestroy it takes about 35 ns, 20 of them for a
 * handle that is never mistaken for another one's.
 * Errors: orErrorInvalidValue for unknown flags, and orEventInterprocess without
 * orEventDisableTiming. */
OPENREG_API orError_t orEventCreateWithFlags(orEvent_t* event, unsigned flags) OPENREG_CHECKED;

/* Creates an event with timing. */
OPENREG_API orError_t orEventCreate(orEvent_t* event) OPENREG_CHECKED;

/* Destroys an event. Records and waits already enqueued are not affected. Null is allowed.
 * In a forked child it frees nothing and returns orSuccess. */
OPENREG_API orError_t orEventDestroy(orEvent_t event) OPENREG_CHECKED;

/* Enqueues a record. It completes, and takes the time, when the stream reaches it.
 * Errors: orErrorNotPermitted for an event that another process shares. */
OPENREG_API orError_t orEventRecord(orEvent_t event, orStream_t stream) OPENREG_CHECKED;

/* Returns orSuccess if the latest record is complete or there is none, orErrorNotReady if it
 * is not (not an error: the thread's last error stays), else the asynchronous error it
 * completed with. Order: see Note [Schedules] in openreg/schedule.h. */
OPENREG_API orError_t orEventQuery(orEvent_t event) OPENREG_CHECKED;

/* Stores 1 if the latest record is complete, with or without an error, or there is none, else 0.
 * For callers that poll many events and do not depend on the result: under every schedule, it
 * advances no stream. */
OPENREG_API orError_t orEventIsComplete(int* is_complete, orEvent_t event) OPENREG_CHECKED;

/* Waits for the latest record; returns at once if there is none.
 * Errors: the asynchronous error it completed with. */
OPENREG_API orError_t orEventSynchronize(orEvent_t event) OPENREG_CHECKED;

/* Stores the milliseconds from one event to the other, negative if `end` came first.
 * Resolution: one nanosecond, of the monotonic clock.
 * Errors: orErrorInvalidResourceHandle if an event was created without timing or never
 * recorded, or the two were recorded on different devices; orErrorNotReady if a record is not
 * complete. */
OPENREG_API orError_t orEventElapsedTime(float* elapsed_ms, orEvent_t start,
                                         orEvent_t end) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
