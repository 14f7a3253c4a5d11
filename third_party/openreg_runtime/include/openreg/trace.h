/* Tracing: records of the work of streams and of calls, with times.
 *
 * Tracing is off until orTraceStart. While it is on, every submission gets a correlation id, and
 * each piece of work leaves a record when it retires. Records stay in per-thread buffers until they
 * are consumed. While it is off, a submission costs one relaxed load more. */
#ifndef OPENREG_TRACE_H
#define OPENREG_TRACE_H

#include <openreg/error.h>

typedef enum orActivityKind {
  orActivityKernel = 1u << 0,
  orActivityMemcpy = 1u << 1,
  orActivityMemset = 1u << 2,
  orActivityHostFunc = 1u << 3,
  orActivitySynchronize = 1u << 4, /* a host thread waited */
  orActivityMemory = 1u << 5,      /* an allocation or a free */
  orActivityRuntime = 1u << 6,     /* the host side of a submission */
  orActivityRange = 1u << 7,       /* a range of host time; see range.h */
  orActivityMark = 1u << 8,        /* a moment of host time */
  orActivityAll = 0x1ffu
} orActivityKind;

typedef struct orActivityRecord {
  orActivityKind kind;
  const char* name; /* of the kernel, the range or the mark; else the function's */
  int device;
  unsigned long long stream_id; /* as orStreamGetId; UINT64_MAX if no stream is involved */
  uint64_t correlation_id;      /* links a runtime record with the work it submitted; from 1 */
  uint64_t external_id;         /* innermost orTracePushExternalId of the submitting thread */
  int has_external_id;          /* 0 or 1: an external id of 0 is valid */
  int thread_id;                /* the operating system's, of the thread that ran it */
  int64_t submit_ns;            /* monotonic clock: when it was enqueued */
  int64_t start_ns;             /* when it started to run */
  int64_t end_ns;               /* when it ended */
  uint64_t bytes;               /* copied, set, allocated (frees too); 0 for others */
  uint64_t address;             /* of a memory record; 0 for others */
  int memcpy_kind;              /* an orMemcpyKind of a memcpy record; -1 for others */
  int peer_device;              /* the other device of a copy between two; -1 for others */
} orActivityRecord;

typedef void (*orActivityFn)(const orActivityRecord* record, void* user_data);

OPENREG_EXTERN_C_BEGIN

/* Starts to record the given kinds (a sum of orActivityKind), instead of those recorded so
 * far. Errors: orErrorInvalidValue for a sum that is 0 or has unknown bits. */
OPENREG_API orError_t orTraceStart(unsigned kinds) OPENREG_CHECKED;

/* Stops recording. Records made so far stay. Work submitted while tracing was on and not yet
 * retired leaves no record. */
OPENREG_API orError_t orTraceStop(void) OPENREG_CHECKED;

/* Stores 1 while tracing is on, else 0. */
OPENREG_API orError_t orTraceIsOn(int* is_on) OPENREG_CHECKED;

/* Records work that the calling thread did in place of a stream, such as a copy that it made
 * itself after it had waited for the stream. Reads from `work` its kind (kernel, memcpy or
 * memset), name, start_ns, end_ns, bytes, memcpy_kind and peer_device; the rest is filled in. As
 * for submitted work, there is also a record of kind orActivityRuntime, named `call`. Does
 * nothing while tracing is off.
 * Owns: both names must live as long as the process.
 * Errors: orErrorInvalidValue for another kind, a null name or a negative duration. */
OPENREG_API orError_t orTraceRecordWork(orStream_t stream, const char* call,
                                        const orActivityRecord* work) OPENREG_CHECKED;

/* Passes every record made so far to `consume`, ordered by end_ns, and discards them. With a null
 * function only discards. No lock is held during the calls. Until then a record takes 94 bytes; its
 * buffer is freed with it. */
OPENREG_API orError_t orTraceConsume(orActivityFn consume, void* user_data) OPENREG_CHECKED;

/* Sets or restores the external id of what this thread submits. Calls nest.
 * Errors: orErrorInvalidValue if there is nothing to pop. */
OPENREG_API orError_t orTracePushExternalId(uint64_t id) OPENREG_CHECKED;
OPENREG_API orError_t orTracePopExternalId(uint64_t* id) OPENREG_CHECKED;

/* Stores the clock that all records and events use: monotonic, in nanoseconds. */
OPENREG_API orError_t orTraceGetTime(int64_t* now_ns) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
