// Events: see Note [One completion per record] in openreg/event.h.
#pragma once

#include <openreg/event.h>

#include <cstdint>
#include <mutex>

#include "capture.h"
#include "completion.h"
#include "error.h"

namespace openreg {

class Stream;

class Event {
 public:
  explicit Event(unsigned flags) : flags_(flags) {}

  bool has_timing() const { return (flags_ & orEventDisableTiming) == 0; }

  // What the latest record made: a completion, or a mark if the stream was capturing. Neither if
  // there is none.
  struct Record {
    CompletionRef completion;
    CaptureMark mark;

    bool is_captured() const { return mark.capture != nullptr; }
  };

  // Enqueues a record.
  orError_t record(Stream& stream);

  Record latest() const;

 private:
  void set_latest(Record record);

  const unsigned flags_;

  mutable std::mutex mutex_;  // a leaf
  Record latest_;
};

// Enqueues a record of the stream that completes the completion. Stores its number, 0 if it was
// not queued. `call` is as in Submission.
orError_t submit_record(Stream& stream, const CompletionRef& completion, uint64_t* sequence,
                        const trace::Span* call = nullptr);

// Enqueues a wait for a completion, of kind Wait or Follow. Stores its number, 0 if there was
// nothing to wait for.
orError_t submit_wait(Stream& stream, const CompletionRef& completion, uint64_t* sequence,
                      CommandKind kind = CommandKind::Wait, const trace::Span* call = nullptr);

}  // namespace openreg

// What a handle points at.
struct orEvent : openreg::Event {
  using Event::Event;
};
