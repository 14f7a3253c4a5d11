// Events: see Note [One completion per record] in openreg/event.h.
#pragma once

#include <openreg/event.h>

#include <mutex>

#include "completion.h"
#include "error.h"

namespace openreg {

class Stream;

class Event {
 public:
  explicit Event(unsigned flags) : flags_(flags) {}

  bool has_timing() const { return (flags_ & orEventDisableTiming) == 0; }

  // Enqueues a record.
  orError_t record(Stream& stream);

  // The completion of the latest record; empty if there is none.
  CompletionRef latest() const;

 private:
  const unsigned flags_;

  mutable std::mutex mutex_;  // a leaf
  CompletionRef latest_;
};

// Enqueues a wait for a completion.
orError_t wait_for(Stream& stream, const CompletionRef& completion);

}  // namespace openreg

// What a handle points at.
struct orEvent : openreg::Event {
  using Event::Event;
};
