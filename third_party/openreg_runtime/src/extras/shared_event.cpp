#include "extras/shared_event.h"

#include <new>
#include <optional>
#include <utility>

#include "extras/ledger.h"

namespace openreg {
namespace {

// A record in this process's ledger.
class OwnRecord final : public SharedRecord {
 public:
  explicit OwnRecord(RecordName name) : name_(name) {}
  OwnRecord(const OwnRecord&) = delete;
  OwnRecord& operator=(const OwnRecord&) = delete;
  ~OwnRecord() override { Ledger::existing()->drop_record(name_); }

  RecordName name() const { return name_; }
  void complete(bool has_failed) override { Ledger::existing()->complete(name_, has_failed); }

 private:
  const RecordName name_;
};

// A record in another process's ledger, of an event of that process.
class RecordForPeer final : public SharedRecord {
 public:
  RecordForPeer(std::shared_ptr<Peer> peer, RecordName name)
      : peer_(std::move(peer)), name_(name) {}
  RecordForPeer(const RecordForPeer&) = delete;
  RecordForPeer& operator=(const RecordForPeer&) = delete;
  ~RecordForPeer() override { complete(/*has_failed=*/false); }  // if it was never completed

  RecordName name() const { return name_; }
  void complete(bool has_failed) override { complete_record(*peer_, name_, has_failed); }

 private:
  const std::shared_ptr<Peer> peer_;
  const RecordName name_;
};

class RecordOfPeer final : public RemoteRecord {
 public:
  explicit RecordOfPeer(PeerRecord record) : record_(std::move(record)) {}

  bool is_complete(FailureRef* failure) const override { return record_.is_complete(failure); }
  orError_t wait(FailureRef* failure) const override { return record_.wait(failure); }

 private:
  const PeerRecord record_;
};

[[maybe_unused]] const bool is_installed = [] {
  make_shared_event = &OwnSharedEvent::make;
  return true;
}();

}  // namespace

orError_t OwnSharedEvent::make(std::shared_ptr<SharedEvent>* event) {
  Ledger* ledger = nullptr;
  if (const orError_t error = Ledger::get(&ledger)) return error;
  uint32_t slot = LedgerFile::no_slot;
  if (const orError_t error = ledger->make_event(&slot)) return error;
  try {
    *event = std::make_shared<OwnSharedEvent>(slot);
    return orSuccess;
  } catch (const std::bad_alloc&) {
    ledger->drop_event(slot);
    throw;
  }
}

OwnSharedEvent::~OwnSharedEvent() { Ledger::existing()->drop_event(slot_); }

uint32_t OwnSharedEvent::generation() const {
  return Ledger::existing()->generation_of_event(slot_);
}

orError_t OwnSharedEvent::make_record(std::unique_ptr<SharedRecord>* record) {
  RecordName name{};
  if (const orError_t error = Ledger::existing()->make_record(&name)) return error;
  try {
    *record = std::make_unique<OwnRecord>(name);
    return orSuccess;
  } catch (const std::bad_alloc&) {
    Ledger::existing()->drop_record(name);
    throw;
  }
}

void OwnSharedEvent::publish(const SharedRecord& record) {
  Ledger::existing()->set_latest(slot_, static_cast<const OwnRecord&>(record).name());
}

orError_t OwnSharedEvent::find_latest(std::unique_ptr<RemoteRecord>* record) const {
  if (const auto name = Ledger::existing()->peers_latest(slot_)) {
    *record = std::make_unique<RecordOfPeer>(PeerRecord{nullptr, *name});
  }
  return orSuccess;
}

orError_t PeersSharedEvent::make_record(std::unique_ptr<SharedRecord>* record) {
  RecordName name{};
  if (const orError_t error = openreg::make_record(event_, &name)) return error;
  try {
    *record = std::make_unique<RecordForPeer>(event_.peer, name);
    return orSuccess;
  } catch (const std::bad_alloc&) {
    complete_record(*event_.peer, name, /*has_failed=*/false);
    throw;
  }
}

void PeersSharedEvent::publish(const SharedRecord& record) {
  publish_record(event_, static_cast<const RecordForPeer&>(record).name());
}

orError_t PeersSharedEvent::find_latest(std::unique_ptr<RemoteRecord>* record) const {
  std::optional<PeerRecord> latest;
  if (const orError_t error = openreg::find_latest(event_, &latest)) return error;
  if (latest) *record = std::make_unique<RecordOfPeer>(*std::move(latest));
  return orSuccess;
}

}  // namespace openreg
