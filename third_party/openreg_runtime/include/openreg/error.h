/* Errors: one code per cause, from one table.
 *
 * Codes that CUDA also has carry CUDA's name and number; others start at 2000.
 *
 * Synchronous errors are returned by the call that caused them. Asynchronous errors (a kernel
 * failed, a host function failed) belong to the stream they happened on:
 *   - the first one is kept, with the kernel's name and text; later work on that stream is
 *     dropped, not run;
 *   - an event recorded on the stream after the failure completes with the error, and a
 *     stream that waits for such an event inherits it;
 *   - the next call that waits for or queries the stream, the event or the device returns
 *     it. A call on a stream or device clears it from the streams it covers, which then run
 *     new work again. An event keeps it until it is recorded again.
 * A sticky error (orMakeKernelErrorSticky) belongs to the device: no call clears it.
 */
#ifndef OPENREG_ERROR_H
#define OPENREG_ERROR_H

#include <openreg/types.h>

/* X(name, number, text) */
#define OPENREG_ERRORS(X)                                                                         \
  X(orSuccess, 0, "no error")                                                                     \
  X(orErrorInvalidValue, 1, "invalid argument")                                                   \
  X(orErrorMemoryAllocation, 2, "out of memory")                                                  \
  X(orErrorInitializationError, 3, "initialization error")                                        \
  X(orErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                       \
  X(orErrorNoDevice, 100, "no openreg device is available")                                       \
  X(orErrorInvalidDevice, 101, "invalid device ordinal")                                          \
  X(orErrorOperatingSystem, 304, "an operating system call failed")                               \
  X(orErrorInvalidResourceHandle, 400, "invalid resource handle")                                 \
  X(orErrorIllegalState, 401, "an object is not in a state that allows the operation")            \
  X(orErrorNotReady, 600, "device not ready")                                                     \
  X(orErrorIllegalAddress, 700, "an address outside any allocation was used")                     \
  X(orErrorAssert, 710, "a check in a kernel failed")                                             \
  X(orErrorLaunchFailure, 719, "a kernel failed")                                                 \
  X(orErrorNotPermitted, 800, "operation not permitted")                                          \
  X(orErrorNotSupported, 801, "operation not supported")                                          \
  X(orErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")     \
  X(orErrorStreamCaptureInvalidated, 901, "capture was invalidated by an earlier error")          \
  X(orErrorStreamCaptureMerge, 902, "two captures would be merged")                               \
  X(orErrorStreamCaptureUnmatched, 903, "the capture did not begin on this stream")               \
  X(orErrorStreamCaptureUnjoined, 904, "a capture has work that its first stream has not joined") \
  X(orErrorStreamCaptureIsolation, 905, "captured work would depend on work outside the capture") \
  X(orErrorCapturedEvent, 907, "the event was last recorded in a capturing stream")               \
  X(orErrorStreamCaptureWrongThread, 908, "the capture was begun by another thread")              \
  X(orErrorUnknown, 999, "unknown error")                                                         \
  X(orErrorForked, 2001, "the runtime was used before fork(); it cannot be used in the child")    \
  X(orErrorInvalidSetting, 2002, "an environment variable has a bad value")                       \
  X(orErrorProcessEnded, 2003, "the process that shares a resource has ended")

typedef enum orError_t {
#define OPENREG_DEFINE_ERROR(name, number, text) name = number,
  OPENREG_ERRORS(OPENREG_DEFINE_ERROR)
#undef OPENREG_DEFINE_ERROR
} orError_t;

OPENREG_EXTERN_C_BEGIN

/* Returns the code's name, such as "orErrorInvalidValue"; "unrecognized error code" for a
 * number that is not in the table. The text lives as long as the process. */
OPENREG_API const char* orGetErrorName(orError_t error);

/* Returns the code's one-line description, as orGetErrorName returns its name. */
OPENREG_API const char* orGetErrorString(orError_t error);

/* Returns this thread's last error and resets it to orSuccess. */
OPENREG_API orError_t orGetLastError(void);

/* Returns this thread's last error and leaves it. */
OPENREG_API orError_t orPeekAtLastError(void);

/* Returns what exactly went wrong in the call that set this thread's last error: which
 * argument was wrong and what was expected, or the failed kernel and its text. "" if nothing
 * is known beyond the code.
 * Owns: the text is the runtime's and lives until this thread's next call into it. */
OPENREG_API const char* orGetLastErrorMessage(void);

/* Returns the tag that the failed kernel gave to orSetKernelError, 0 if it gave none or the
 * last error did not come from a kernel. */
OPENREG_API int orGetLastErrorTag(void);

/* Called by a kernel right before it returns an error, to say what went wrong. A host function,
 * which returns nothing, fails with orErrorLaunchFailure by calling it.
 * The caller chooses the tag, a number that orGetLastErrorTag returns with the error. The text
 * is copied. */
OPENREG_API void orSetKernelError(const char* text, int tag);

/* What a kernel says of its error, beyond the code that it returns. */
typedef struct orKernelError {
  const char* text;     /* NULL: that of the code */
  int tag;              /* see orSetKernelError */
  const char* location; /* in the kernel's source, a file and a line; NULL: unknown */
  uintptr_t address;    /* the device address that the error is about; 0: none */
} orKernelError;

/* Does the same as orSetKernelError, for all that is known. The texts are copied. */
OPENREG_API void orSetKernelErrorRecord(const orKernelError* error);

/* What is known of this thread's last error. The texts are the runtime's and live until this
 * thread's next call into it; "" for those that nothing is known of. */
typedef struct orErrorRecord {
  orError_t code;
  int tag;              /* as orGetLastErrorTag */
  const char* message;  /* as orGetLastErrorMessage */
  const char* kernel;   /* the kernel that failed */
  const char* location; /* as of orKernelError */
  uintptr_t address;    /* as of orKernelError; 0: none */
} orErrorRecord;

/* Stores the record of this thread's last error, and leaves it.
 * Errors: orErrorInvalidValue for NULL. */
OPENREG_API orError_t orGetLastErrorRecord(orErrorRecord* record) OPENREG_CHECKED;

/* Called after orSetKernelError, makes the error sticky, as errors of kernels are on a GPU: all
 * streams of the device fail with it, now and later. Until the process ends, each call that
 * enqueues work on the device, waits for a stream of it or allocates its memory returns the error.
 * Frees succeed. */
OPENREG_API void orMakeKernelErrorSticky(void);

OPENREG_EXTERN_C_END

#endif
