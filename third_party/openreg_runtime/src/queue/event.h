// Events: see Note [One completion per record] in openreg/event.h.
#pragma once

#include <openreg/event.h>

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/handle.h"
#include "queue/capture_target.h"
#include "queue/completion.h"
#include "queue/remote_record.h"

namespace openreg {

class Stream;

// What the latest record made: a completion, or a point if the stream was capturing. Neither if
// there is none. Each record moves one and each wait copies one, so points, which few have, are
// apart.
struct EventRecord {
  CompletionRef completion;
  std::shared_ptr<const CapturePoint> point;
  int device = -1;  // of the stream, with a completion

  bool is_captured() const { return point != nullptr; }
};

// What a slot of the table of events holds.
struct Event {
  std::shared_ptr<SharedEvent> shared{};  // only for an interprocess event
  EventRecord latest{};                   // only for an event of this process
};

// A flag of a slot beside those of orEventCreateWithFlags: another process's event.
constexpr unsigned event_is_peers = 1u << 31;

// Stores an event and returns its handle.
orEvent_t add_event(Event event, unsigned flags);

// An event that a C function was given; another thread may destroy it at any time.
class EventRef {
 public:
  // Fails in a forked child and if the handle is not that of an event.
  static orError_t find(orEvent_t handle, const char* function, EventRef* event);

  bool has_timing() const { return (flags_ & orEventDisableTiming) == 0; }
  bool is_interprocess() const { return (flags_ & orEventInterprocess) != 0; }
  bool is_peers() const { return (flags_ & event_is_peers) != 0; }

  // Enqueues a record.
  orError_t record(Stream& stream) const;

  // Only for an event of this process. Fails if it has been destroyed meanwhile, as all below.
  orError_t get_latest(EventRecord* latest) const;

  // The completion of the latest record of another process's event; empty if there is none. Fails
  // if that has been destroyed.
  orError_t find_peers_latest(CompletionRef* latest) const;

  // Only for an interprocess event.
  orError_t get_shared(std::shared_ptr<SharedEvent>* shared) const;

 private:
  orError_t record_shared(Stream& stream) const;
  void set_latest(EventRecord record) const;
  template <typename Use>
  bool use(Use&& use) const;
  orError_t fail_destroyed() const;

  HandleSlot<Event>* slot_ = nullptr;
  uint64_t handle_ = 0;
  unsigned flags_ = 0;
  const char* function_ = nullptr;
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
