// Peers: other processes whose ledgers and arenas are mapped here.
//
// An imported arena obeys Note [Two addresses]: it has a range that nothing may access, and the
// range for kernels is at the same distance as in this process's own arenas.
//
// Lock order: the lock of imports is a leaf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/error.h"
#include "extras/ledger.h"
#include "memory/arena.h"
#include "memory/extra_memory.h"

namespace openreg {

// A process that shares. Its ledger is mapped as long as the object lives.
class Peer {
 public:
  // Finds the peer, or maps its ledger. Fails for this process.
  static orError_t open(const LedgerIdentity& identity, std::shared_ptr<Peer>* peer);

  Peer(const LedgerIdentity& identity, LedgerFile* file) : identity_(identity), file_(file) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  int process() const { return identity_.process; }
  bool is_alive() const;
  LedgerFile& file() { return *file_; }
  const LedgerIdentity& identity() const { return identity_; }

 private:
  const LedgerIdentity identity_;
  LedgerFile* const file_;
};

// An event of a peer.
struct PeerEvent {
  std::shared_ptr<Peer> peer;
  uint32_t slot = 0;
  uint32_t generation = 0;
};

// A record that another process is to complete, or one in another process's ledger. See Note
// [Shared records].
struct PeerRecord {
  std::shared_ptr<Peer> peer;  // whose ledger has it; null: this process's
  RecordName name{};

  LedgerFile& file() const { return peer != nullptr ? peer->file() : Ledger::existing()->file(); }

  // Stores whether the record is complete, and if so its failure, else null. A record whose process
  // has ended is complete.
  bool is_complete(FailureRef* failure) const;

  // Waits until it is complete. Fails if this process exits.
  orError_t wait(FailureRef* failure) const;

 private:
  // The process that is to complete it.
  int maker() const;
  bool is_maker_alive() const;
};

// Stores the latest record of a peer's event, none if there is none. Fails if the event was
// destroyed.
orError_t find_latest(const PeerEvent& event, std::optional<PeerRecord>* record);

// Makes a record of a peer's event, which this process completes; publishes it as the latest one.
orError_t make_record(const PeerEvent& event, RecordName* record);
void publish_record(const PeerEvent& event, RecordName record);

// Completes it, unless its slot has been taken for another record since then.
void complete_record(Peer& peer, RecordName record, bool has_failed);

// A lease that this process holds.
struct HeldLease {
  std::shared_ptr<Peer> peer;
  uint32_t slot = 0;
};

orError_t take_lease(std::shared_ptr<Peer> peer, uint64_t lease, HeldLease* held);
void end_lease(const HeldLease& held);

// --- Memory

// Opens an allocation of a peer, given by its offset in the arena of a device. A device of this
// number exists here.
orError_t open_allocation(const std::shared_ptr<Peer>& peer, int device, uint64_t offset,
                          uint64_t size, uintptr_t* address);

// Closes it. Returns false if nothing that is opened starts there.
bool close_allocation(uintptr_t address);

// As find_imported() of memory/extra_memory.h; stores false if that is not known at the moment. For
// the fault handler.
std::optional<ImportedAllocation> try_find_imported(uintptr_t address, bool* is_known);

}  // namespace openreg
