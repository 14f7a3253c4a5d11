// Events that processes share: see queue/remote_record.h, and Note [Ledger] in openreg/ipc.h.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "extras/peer.h"
#include "queue/remote_record.h"

namespace openreg {

// An event of this process, with its slot in the ledger.
class OwnSharedEvent final : public SharedEvent {
 public:
  static orError_t make(std::shared_ptr<SharedEvent>* event);

  explicit OwnSharedEvent(uint32_t slot) : slot_(slot) {}
  OwnSharedEvent(const OwnSharedEvent&) = delete;
  OwnSharedEvent& operator=(const OwnSharedEvent&) = delete;
  ~OwnSharedEvent() override;

  uint32_t slot() const { return slot_; }
  uint32_t generation() const;

  orError_t make_record(std::unique_ptr<SharedRecord>* record) override;
  void publish(const SharedRecord& record) override;
  orError_t find_latest(std::unique_ptr<RemoteRecord>* record) const override;

 private:
  const uint32_t slot_;
};

// An event of another process.
class PeersSharedEvent final : public SharedEvent {
 public:
  explicit PeersSharedEvent(PeerEvent event) : event_(std::move(event)) {}

  orError_t make_record(std::unique_ptr<SharedRecord>* record) override;
  void publish(const SharedRecord& record) override;
  orError_t find_latest(std::unique_ptr<RemoteRecord>* record) const override;

 private:
  const PeerEvent event_;
};

}  // namespace openreg
