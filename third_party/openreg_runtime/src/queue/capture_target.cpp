#include "queue/capture_target.h"

#include <atomic>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "queue/stream.h"

namespace openreg {
namespace {

// The captures that last.
struct Captures {
  Mutex mutex;
  std::vector<std::shared_ptr<CaptureTarget>> all OPENREG_GUARDED_BY(mutex);
};

Captures& captures() {
  static auto* captures = new Captures;
  return *captures;
}

std::atomic<int> capture_count{0};  // captures().all.size(); read at any time
std::vector<std::shared_ptr<CaptureTarget>> all_captures() {
  if (capture_count.load(std::memory_order_relaxed) == 0) return {};
  const Lock lock(captures().mutex);
  return captures().all;
}

}  // namespace

orError_t CaptureTarget::refuse(orError_t code, const std::string& reason) {
  invalidate(reason);
  return fail(code, reason);
}

void add_capture(std::shared_ptr<CaptureTarget> capture) {
  const Lock lock(captures().mutex);
  captures().all.push_back(std::move(capture));
  ++capture_count;
}

void remove_capture(const std::shared_ptr<CaptureTarget>& capture) {
  const Lock lock(captures().mutex);
  capture_count -= static_cast<int>(std::erase(captures().all, capture));
}

orStreamCaptureMode& this_threads_capture_mode() {
  thread_local orStreamCaptureMode mode = orStreamCaptureModeGlobal;
  return mode;
}

orError_t check_not_capturing(const Stream& stream, const char* function) {
  const std::shared_ptr<CaptureTarget> capture = stream.capture();
  if (capture == nullptr) return orSuccess;
  return capture->refuse(
      orErrorStreamCaptureUnsupported,
      concat(function, ": expected a stream that is not capturing, got ", stream.name()));
}

orError_t check_safe(const char* function) {
  orError_t error = orSuccess;
  for (const std::shared_ptr<CaptureTarget>& capture : all_captures()) {
    if (!capture->forbids_unsafe_calls(this_threads_capture_mode())) continue;
    error = capture->refuse(
        orErrorStreamCaptureUnsupported,
        concat(function, ": expected no capture that forbids this, got ", capture->description()));
  }
  return error;
}

orError_t check_may_wait(const Stream& stream, const char* function) {
  if (const orError_t error = check_not_capturing(stream, function)) return error;
  return check_safe(function);
}

orError_t check_may_wait(int device, const char* function) {
  orError_t error = orSuccess;
  for (const std::shared_ptr<CaptureTarget>& capture : all_captures()) {
    if (!capture->has_stream_on(device)) continue;
    error = capture->refuse(orErrorStreamCaptureUnsupported,
                            concat(function, ": expected no stream of device ", device,
                                   " to be capturing, got ", capture->description()));
  }
  return error == orSuccess ? check_safe(function) : error;
}

}  // namespace openreg
