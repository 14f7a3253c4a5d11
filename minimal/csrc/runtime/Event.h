// Step 4 of docs/bring_up.md, events. In full: csrc/core/GuardImpl.cpp.
#pragma once

#include <c10/core/Event.h>

#include "Stream.h"

namespace chip {

// docs: minimal-event
// What a c10::Event keeps for the guard: the driver's event, null until the first record.
inline orEvent_t handleOf(void* event) { return static_cast<orEvent_t>(event); }

inline void recordEvent(void** event, const c10::Stream& stream, c10::EventFlag flag) {
  const bool is_timed = flag == c10::EventFlag::BACKEND_DEFAULT;  // Event(enable_timing=True)
  orEvent_t handle = handleOf(*event);
  if (handle == nullptr) {
    check(orEventCreateWithFlags(&handle, is_timed ? orEventDefault : orEventDisableTiming));
    *event = handle;
  }
  check(orEventRecord(handle, handleOf(stream)));
}

// Whether a stream or an event is done, by what the driver's query returned.
inline bool isDone(orError_t error) {
  if (error != orErrorNotReady) check(error);
  return error == orSuccess;
}

inline double elapsedTime(void* start, void* end) {
  TORCH_CHECK(start && end, "elapsed_time: expected events that were recorded");
  float milliseconds = 0;
  check(orEventElapsedTime(&milliseconds, handleOf(start), handleOf(end)));
  return milliseconds;
}
// docs: end

// For the allocators: whether the event is done, with an error or without.
inline bool isComplete(const c10::Event& event) {
  int is_complete = 1;
  check(orEventIsComplete(&is_complete, handleOf(event.eventId())));
  return is_complete != 0;
}

}  // namespace chip
