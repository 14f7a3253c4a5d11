// An event of the runtime, owned.
//
// Used where the backend itself orders streams, and by extensions; torch.Event goes through the
// guard's virtuals. The defaults are those of Functions.h. An event of a stream that captures is
// part of the graph: other streams may wait for it, which makes them part of the capture, and the
// host may not.
#pragma once

#include <openreg/event.h>

#include <concepts>
#include <optional>
#include <tuple>
#include <utility>

#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// The runtime's event is created by the first record, and is then bound to that stream's device.
// Before, there is nothing to wait for: queries say that it is done, and waits return at once.
// Threads: one at a time, as for c10::Event.
class OpenRegEvent {
 public:
  explicit OpenRegEvent(unsigned flags = orEventDisableTiming) noexcept : flags_(flags) {}

  // A bool says whether the event takes times. Only a bool: a number is flags.
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

  // The device that the event is bound to, if it is; device_index() is -1 then.
  std::optional<Device> device() const {
    return isCreated() ? std::optional<Device>(Device(kDeviceType, device_index_)) : std::nullopt;
  }
  DeviceIndex device_index() const { return device_index_; }

  // Records on the current stream.
  void record() { record(getCurrentOpenRegStream()); }

  // Errors: RuntimeError if the event is bound to another device than the stream's.
  void record(const OpenRegStream& stream) {
    if (!isCreated()) {
      OPENREG_CHECK(orEventCreateWithFlags(&event_, flags_));
      device_index_ = stream.device_index();
    }
    TORCH_CHECK(device_index_ == stream.device_index(),
                "OpenRegEvent.record: event was created on ", *device(), ", but the stream is ",
                stream);
    OPENREG_CHECK(orEventRecord(event_, stream.stream()));
    was_recorded_ = true;
  }

  // Does nothing if the event has been recorded.
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
    OPENREG_CHECK_RESULT(error, "OpenRegEvent.query");
    return true;
  }

  // Waits for the latest record; the caller has released the GIL.
  // Errors: the asynchronous error that it completed with.
  void synchronize() const {
    if (isCreated()) {
      OPENREG_CHECK_RESULT(orEventSynchronize(event_), "OpenRegEvent.synchronize");
    }
  }

  // Milliseconds from this event's latest record to the other's.
  // Errors: ValueError unless both take times and have been recorded; RuntimeError unless both are
  // complete.
  float elapsed_time(const OpenRegEvent& other) const {
    TORCH_CHECK_VALUE(((flags_ | other.flags_) & orEventDisableTiming) == 0,
                      "OpenRegEvent.elapsed_time: expected two events created with timing, "
                      "got one created without");
    TORCH_CHECK_VALUE(was_recorded_ && other.was_recorded_,
                      "OpenRegEvent.elapsed_time: expected two recorded events, got one that was "
                      "never recorded");
    float elapsed_ms = 0;
    OPENREG_CHECK_RESULT(orEventElapsedTime(&elapsed_ms, event_, other.event_),
                         "OpenRegEvent.elapsed_time");
    return elapsed_ms;
  }

  // As synchronize(), but a failure of the recorded stream only ends the wait; the stream reports
  // it.
  void waitUntilComplete() const noexcept {
    if (isCreated()) {
      std::ignore = orEventSynchronize(event_);
    }
  }

  // As query(), but a failure of the recorded stream counts as complete; the stream reports it.
  // Lets nothing run, whatever the schedule is.
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
