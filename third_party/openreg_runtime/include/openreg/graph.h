/* Graphs: work that is captured from streams once and launched many times.
 *
 * Life: after orStreamBeginCapture, what is submitted to the stream becomes nodes of a graph and
 * does not run. orStreamEndCapture returns the graph, orGraphInstantiate makes it executable,
 * orGraphLaunch runs it.
 *
 * Note [What a capture holds]
 * Commands of one stream follow each other. An event recorded in a capturing stream stands for
 * the nodes before it. Later work of a stream that waits for the event follows those nodes; the
 * stream joins the capture if it was not in it, even if it belongs to another device. At the end,
 * the stream where the capture began must have waited, through events, for all work of the others.
 * A node keeps the closure of its command and runs it on each launch; see orKernel. Addresses,
 * sizes and the arguments of fills are those of the capture. Host memory must be pinned.
 *
 * Note [Invalid captures]
 * A call that cannot be part of a graph fails, with a code that says why, and invalidates the
 * capture: its streams reject everything with orErrorStreamCaptureInvalidated until
 * orStreamEndCapture, which returns the same error and no graph. Then they are usable again.
 *   orErrorStreamCaptureUnsupported   waiting for a capturing stream or its device, querying it,
 *                                     copying from or to memory that is not pinned, destroying
 *                                     it; or an unsafe call, see Note [Unsafe calls]
 *   orErrorStreamCaptureMerge         waiting for an event of another capture
 *   orErrorStreamCaptureIsolation     waiting for an event that was recorded outside
 *   orErrorStreamCaptureUnmatched     ending on a stream where the capture did not begin
 *   orErrorStreamCaptureUnjoined      ending while a stream's work is not joined
 *   orErrorCapturedEvent              waiting for, or querying, an event recorded in a capture
 * orErrorStreamCaptureWrongThread leaves the capture as it was.
 *
 * Note [Unsafe calls]
 * Calls that allocate or free memory, copy or fill and wait, wait for a stream, an event or a
 * device, or query one, are not part of any graph: their effects would be missing from a launch.
 * The mode of a capture says which threads may not make them during the capture, and
 * orThreadExchangeStreamCaptureMode says which captures restrict a thread:
 *
 *                          the thread's mode:  Global          ThreadLocal     Relaxed
 *   capture in mode Global, of this thread     forbidden       forbidden       allowed
 *   capture in mode Global, of another         forbidden       allowed         allowed
 *   capture in mode ThreadLocal, of this       forbidden       forbidden       allowed
 *   any other                                  allowed         allowed         allowed
 */
#ifndef OPENREG_GRAPH_H
#define OPENREG_GRAPH_H

#include <openreg/error.h>

typedef enum orStreamCaptureStatus {
  orStreamCaptureStatusNone = 0,
  orStreamCaptureStatusActive = 1,
  orStreamCaptureStatusInvalidated = 2 /* until the capture is ended */
} orStreamCaptureStatus;

typedef enum orStreamCaptureMode {
  orStreamCaptureModeGlobal = 0,
  orStreamCaptureModeThreadLocal = 1,
  orStreamCaptureModeRelaxed = 2
} orStreamCaptureMode;

/* Captured work. */
typedef struct orGraph* orGraph_t;

/* A graph that is ready to launch. */
typedef struct orGraphExec* orGraphExec_t;

OPENREG_EXTERN_C_BEGIN

/* Begins a capture on a stream. Work submitted before is not affected.
 * Errors: orErrorIllegalState if it is capturing already. */
OPENREG_API orError_t orStreamBeginCapture(orStream_t stream,
                                           orStreamCaptureMode mode) OPENREG_CHECKED;

/* Ends the capture that began on the stream, for all its streams, and stores the graph. A
 * capture that was invalidated, or whose work is not joined, ends as well.
 * Owns: the graph is the caller's.
 * Threads: the thread that began the capture, unless that is in mode Relaxed.
 * Errors: orErrorIllegalState if the stream is not capturing, and those of
 * Note [Invalid captures]. */
OPENREG_API orError_t orStreamEndCapture(orStream_t stream, orGraph_t* graph) OPENREG_CHECKED;

/* Stores the stream's capture status. Allowed in any capture. */
OPENREG_API orError_t orStreamIsCapturing(orStream_t stream,
                                          orStreamCaptureStatus* status) OPENREG_CHECKED;

/* Stores the stream's capture status and, unless that is None, the number of its capture: from 1,
 * unique in the process. A null `id` is allowed. */
OPENREG_API orError_t orStreamGetCaptureInfo(orStream_t stream, orStreamCaptureStatus* status,
                                             unsigned long long* id) OPENREG_CHECKED;

/* Sets the calling thread's mode, initially Global, and stores the previous one in its place; see
 * Note [Unsafe calls]. */
OPENREG_API orError_t orThreadExchangeStreamCaptureMode(orStreamCaptureMode* mode) OPENREG_CHECKED;

/* Stores how many nodes a graph has: one for each kernel, host function, copy and fill. */
OPENREG_API orError_t orGraphGetNodeCount(orGraph_t graph, size_t* count) OPENREG_CHECKED;

/* Stores how many pairs of nodes there are of which one directly follows the other: no path by way
 * of further nodes says the same. */
OPENREG_API orError_t orGraphGetEdgeCount(orGraph_t graph, size_t* count) OPENREG_CHECKED;

/* Writes the graph as a file for graphviz: for each node its kind, name, stream, device and bytes.
 * Errors: orErrorOperatingSystem if the file cannot be written; orErrorInvalidValue unless flags
 * is 0. */
OPENREG_API orError_t orGraphDebugDotPrint(orGraph_t graph, const char* path,
                                           unsigned flags) OPENREG_CHECKED;

/* Destroys a graph. What was instantiated from it stays. Null is allowed. */
OPENREG_API orError_t orGraphDestroy(orGraph_t graph) OPENREG_CHECKED;

/* Makes an executable graph. Work captured on one stream will run on one stream; that of the
 * stream where the capture began, on the stream of the launch.
 * Owns: it shares the graph's closures, and keeps them when the graph is destroyed.
 * Errors: orErrorInvalidValue unless flags is 0. */
OPENREG_API orError_t orGraphInstantiate(orGraphExec_t* exec, orGraph_t graph,
                                         unsigned long long flags) OPENREG_CHECKED;

/* Enqueues all work of the graph.
 * Order: as one piece of work of the stream. A launch waits for earlier launches, on any stream,
 * of everything instantiated from the same graph, since they share closures.
 * Threads: not from work that runs on a stream (orErrorNotPermitted).
 * Errors: those of its kernels are the stream's asynchronous errors; the kernels after a failed
 * one are dropped. orErrorStreamCaptureUnsupported if the stream is capturing: a graph cannot be
 * part of another. */
OPENREG_API orError_t orGraphLaunch(orGraphExec_t exec, orStream_t stream) OPENREG_CHECKED;

/* Destroys an executable graph. Launches already enqueued still run. Null is allowed.
 * Threads: closures are destroyed by this thread or, after the last launch, by a worker. */
OPENREG_API orError_t orGraphExecDestroy(orGraphExec_t exec) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
