#include "graph.h"

#include "stream.h"

namespace openreg {

void set_command_sink(Stream& stream, CommandSink* sink) { stream.set_sink(sink); }

orError_t check_not_capturing(const Stream& stream, const char* function) {
  if (stream.sink() == nullptr) return orSuccess;
  return fail(
      orErrorStreamCaptureUnsupported,
      concat(function, ": expected a stream that is not capturing, got stream ", stream.id()));
}

}  // namespace openreg

extern "C" {

orError_t orStreamIsCapturing(orStream_t stream, orStreamCaptureStatus* status) {
  return openreg::guarded([&] {
    using namespace openreg;
    if (status == nullptr) return fail(orErrorInvalidValue, "orStreamIsCapturing: status is null");
    Stream* found = nullptr;
    if (const orError_t error = find_stream(stream, &found)) return error;
    *status = found->sink() == nullptr ? orStreamCaptureStatusNone : orStreamCaptureStatusActive;
    return orSuccess;
  });
}

}  // extern "C"
