// Events: see Note [One completion per record] in openreg/event.h.
#pragma once

#include <openreg/event.h>

#include <cstdint>
#include <utility>

#include "capture.h"
#include "completion.h"
#include "error.h"
#include "ledger.h"
#include "mutex.h"
#include "peer.h"

namespace openreg {

class Stream;

class Event {
 public:
  explicit Event(unsigned flags) : flags_(flags) {}

  explicit Event(PeerEvent event)
      : flags_(orEventDisableTiming | orEventInterprocess), peer_event_(std::move(event)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  bool has_timing() const { return (flags_ & orEventDisableTiming) == 0; }
  bool is_interprocess() const { return (flags_ & orEventInterprocess) != 0; }
  bool is_peers() const { return peer_event_.peer != nullptr; }

  // The event's slot in the ledger. Only for an interprocess event of this process.
  uint32_t shared_slot() const { return shared_slot_; }

  // Gives an interprocess event its slot. Called before another thread may see it.
  orError_t share();

  // What the latest record made: a completion, or a mark if the stream was capturing. Neither if
  // there is none.
  struct Record {
    CompletionRef completion;
    CaptureMark mark;
    int device = -1;  // of the stream, with a completion

    bool is_captured() const { return mark.capture != nullptr; }
  };

  // Enqueues a record.
  orError_t record(Stream& stream);

  // Only for an event of this process.
  Record latest() const;

  // The completion of the latest record of another process's event; empty if there is none. Fails
  // if that has been destroyed.
  orError_t find_peers_latest(CompletionRef* latest) const;

 private:
  orError_t record_shared(Stream& stream);
  void set_latest(Record record);

  const unsigned flags_;
  uint32_t shared_slot_ = LedgerFile::no_slot;
  const PeerEvent peer_event_;

  mutable Mutex mutex_;  // a leaf
  Record latest_ OPENREG_GUARDED_BY(mutex_);
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
