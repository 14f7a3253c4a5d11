// Events: see Note [One completion per record] in openreg/event.h.
#pragma once

#include <openreg/event.h>

#include <mutex>
#include <utility>

#include "completion.h"
#include "error.h"
#include "ledger.h"
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

  // Enqueues a record.
  orError_t record(Stream& stream);

  // The completion of the latest record; empty if there is none. Only for an event of this process.
  CompletionRef latest() const;

  // The same for another process's event. Fails if that has been destroyed.
  orError_t find_peers_latest(CompletionRef* latest) const;

 private:
  orError_t record_shared(Stream& stream);

  const unsigned flags_;
  uint32_t shared_slot_ = LedgerFile::no_slot;
  const PeerEvent peer_event_;

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
