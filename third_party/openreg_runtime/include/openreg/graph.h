/* Graphs: the capture state of a stream.
 *
 * Submissions pass one place, where a stream that captures hands the command to its capture
 * and does not queue it. Functions that wait for such a stream, or query it, return
 * orErrorStreamCaptureUnsupported. */
#ifndef OPENREG_GRAPH_H
#define OPENREG_GRAPH_H

#include <openreg/error.h>

typedef enum orStreamCaptureStatus {
  orStreamCaptureStatusNone = 0,
  orStreamCaptureStatusActive = 1,
  orStreamCaptureStatusInvalidated = 2
} orStreamCaptureStatus;

OPENREG_EXTERN_C_BEGIN

/* Stores the stream's capture status. */
OPENREG_API orError_t orStreamIsCapturing(orStream_t stream,
                                          orStreamCaptureStatus* status) OPENREG_CHECKED;

OPENREG_EXTERN_C_END

#endif
