// An event of the runtime, owned.
//
// Used where the backend itself orders streams; torch.Event goes through the guard's virtuals. The
// defaults are those of Functions.h. An event of a stream that captures is part of the graph: other
// streams may wait for it, which makes them part of the capture, and the host may not.
#pragma once

#include <openreg/event.h>

#include <tuple>
#include <utility>

#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

class OpenRegEvent {
 public:
  explicit OpenRegEvent(unsigned flags = orEventDisableTiming) {
    OPENREG_CHECK(orEventCreateWithFlags(&handle_, flags));
  }
  OpenRegEvent(OpenRegEvent&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  OpenRegEvent& operator=(OpenRegEvent&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  OpenRegEvent(const OpenRegEvent&) = delete;
  OpenRegEvent& operator=(const OpenRegEvent&) = delete;
  ~OpenRegEvent() { OPENREG_WARN_IF_FAILED(orEventDestroy(handle_)); }

  orEvent_t handle() const { return handle_; }

  void record(const OpenRegStream& stream) {
    OPENREG_CHECK(orEventRecord(handle_, stream.handle()));
  }

  // Makes later work on the stream wait for the latest record.
  void block(const OpenRegStream& stream) const {
    OPENREG_CHECK(orStreamWaitEvent(stream.handle(), handle_, 0));
  }

  // Waits for the latest record; the caller has released the GIL. A failure of the recorded stream
  // ends the wait, too; the stream reports it.
  void synchronize() const noexcept { std::ignore = orEventSynchronize(handle_); }

  // Whether the latest record is complete. A failure of the recorded stream counts as complete;
  // the stream reports it. Lets nothing run, whatever the schedule is.
  bool isComplete() const noexcept {
    int is_complete = 0;
    return orEventIsComplete(&is_complete, handle_) != orSuccess || is_complete != 0;
  }

 private:
  orEvent_t handle_ = nullptr;
};

// Makes later work on `stream` wait for all work submitted to `other` so far. If `other` has been
// destroyed, the host waits instead.
inline void waitForStream(const OpenRegStream& stream, const OpenRegStream& other) {
  if (stream == other) {
    return;
  }
  if (!other.isAlive()) {
    synchronizeDevice(other.device_index());
    return;
  }
  OpenRegEvent event;
  event.record(other);
  event.block(stream);
}

}  // namespace c10::openreg
