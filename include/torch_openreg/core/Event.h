// An owned event of the runtime.
//
// For ordering streams inside the backend, and for extensions; torch.Event uses the guard's
// virtuals. The defaults are those of Functions.h. An event that is recorded on a capturing stream
// is part of the graph: other streams may wait for it, which adds them to the capture, and the host
// may not.
#pragma once

#include <openreg/event.h>

#include <concepts>
#include <optional>
#include <tuple>
#include <utility>

#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// The first record creates the runtime's event, and binds it to the device of that stream. Before
// that, queries return true and waits return at once.
// Threads: one at a time, as for c10::Event.
class OpenRegEvent {
 public:
  explicit OpenRegEvent(unsigned flags = orEventDisableTiming) noexcept : flags_(flags) {}

  // `Bool` states whether the event has timing. Only bool is accepted; other numbers are flags.
  template <std::same_as<bool> Bool>
  explicit OpenRegEvent(Bool enable_timing) noexcept
      : OpenRegEvent(enable_timing ? orEventDefault : orEventDisableTiming) {}

  OpenRegEvent(OpenRegEvent&& other) noexcept { swap(other); }
  OpenRegEvent& operator=(OpenRegEvent&& other) noexcept {
    swap(other);
    return *this;
  }
  OpenRegEvent(const OpenRegEvent&) = delete;
  OpenRegEvent& operator=(const OpenRegEvent&) = delete;
  ~OpenRegEvent() { OPENREG_WARN_IF_FAILED(orEventDestroy(event_)); }

  // The runtime's handle; null before the first record.
  orEvent_t event() const { return event_; }
  operator orEvent_t() const { return event_; }

  bool isCreated() const { return event_ != nullptr; }

  // The device that the event is bound to, if it is; otherwise device_index() is -1.
  std::optional<Device> device() const {
    return isCreated() ? std::optional<Device>(Device(kDeviceType, device_index_)) : std::nullopt;
  }
  DeviceIndex device_index() const { return device_index_; }

  // Records on the current stream.
  void record() { record(getCurrentOpenRegStream()); }

  // Errors: RuntimeError if the event is bound to a device other than the stream's.
  void record(const OpenRegStream& stream) {
    if (!isCreated()) {
      OPENREG_CHECK(orEventCreateWithFlags(&event_, flags_));
      device_index_ = stream.device_index();
    }
    TORCH_CHECK(device_index_ == stream.device_index(), "Event.record: event was created on ",
                *device(), ", but the stream is ", stream);
    OPENREG_CHECK(orEventRecord(event_, stream.stream()));
    was_recorded_ = true;
  }

  // Does nothing if the event was recorded before.
  void recordOnce(const OpenRegStream& stream) {
    if (!was_recorded_) {
      record(stream);
    }
  }

  // Makes later work on the stream wait for the latest record.
  void block(const OpenRegStream& stream) const {
    if (isCreated()) {
      OPENREG_CHECK(orStreamWaitEvent(stream.stream(), event_, 0));
    }
  }

  // Whether the latest record is complete.
  // Errors: the asynchronous error that it completed with.
  bool query() const {
    const orError_t error = isCreated() ? orEventQuery(event_) : orSuccess;
    if (error == orErrorNotReady) {
      return false;
    }
    OPENREG_CHECK_RESULT(error, "Event.query");
    return true;
  }

  // Waits for the latest record; the caller must have released the GIL.
  // Errors: the asynchronous error that it completed with.
  void synchronize() const {
    if (isCreated()) {
      OPENREG_CHECK_RESULT(orEventSynchronize(event_), "Event.synchronize");
    }
  }

  // Milliseconds from this event's latest record to the other's.
  // Errors: ValueError unless both have timing and were recorded; RuntimeError unless both are
  // complete.
  float elapsed_time(const OpenRegEvent& other) const {
    TORCH_CHECK_VALUE(((flags_ | other.flags_) & orEventDisableTiming) == 0,
                      "Both events must be created with argument 'enable_timing=True'.");
    TORCH_CHECK_VALUE(was_recorded_ && other.was_recorded_,
                      "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(query() && other.query(),
                "Both events must be completed before calculating elapsed time.");
    float elapsed_ms = 0;
    OPENREG_CHECK_RESULT(orEventElapsedTime(&elapsed_ms, event_, other.event_),
                         "Event.elapsed_time");
    return elapsed_ms;
  }

  // As synchronize(), but a failure of the recorded stream only ends the wait; the stream reports
  // the error.
  void waitUntilComplete() const noexcept {
    if (isCreated()) {
      std::ignore = orEventSynchronize(event_);
    }
  }

  // As query(), but a failure of the recorded stream counts as complete; the stream reports the
  // error. Does not advance streams, whatever the schedule is.
  bool isComplete() const noexcept {
    int is_complete = 0;
    return !isCreated() || orEventIsComplete(&is_complete, event_) != orSuccess || is_complete != 0;
  }

 private:
  void swap(OpenRegEvent& other) noexcept {
    std::swap(flags_, other.flags_);
    std::swap(event_, other.event_);
    std::swap(device_index_, other.device_index_);
    std::swap(was_recorded_, other.was_recorded_);
  }

  unsigned flags_ = orEventDisableTiming;
  orEvent_t event_ = nullptr;
  DeviceIndex device_index_ = -1;
  bool was_recorded_ = false;
};

// Makes later work on `stream` wait for all work submitted to `other` so far. If `other` was
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
