// Step 4 of docs/bring_up.md, events. In full: include/torch_openreg/core/Event.h.
#pragma once

#include <c10/core/Event.h>

#include "Stream.h"

namespace chip {

// docs: minimal-event
// What a c10::Event keeps for the guard: the driver's event, null until the first record.
inline orEvent_t handleOf(void* event) { return static_cast<orEvent_t>(event); }

// Whether a stream or an event is done, by what the driver's query returned.
inline bool isDone(orError_t error) {
  if (error != orErrorNotReady) check(error);
  return error == orSuccess;
}

// The stream's later work waits for what the other one has been given so far; the host does not.
inline void waitForStream(const Stream& stream, const Stream& other) {
  if (stream == other) return;
  c10::Event event(kType);
  event.record(other);
  event.block(stream);
}
// docs: end

}  // namespace chip
