// Ledgers: what a process that shares tells the others. See Note [Ledger] in openreg/ipc.h.
//
// Note [Shared records]
// A record of an interprocess event has a slot in the ledger, beside its completion. The slot is a
// word: its generation, and whether the record failed. The record is pending while the word is what
// it was when the slot was taken. Completing it moves the word to the next generation, and so does
// giving the slot back; a process that waits compares the word with the one it saw, so it cannot
// mistake a later record for its own.
//
// A process that received the event may record it, too. The slot of its record is in the ledger of
// the event's process, in a ring of its own whose slots are taken one after the other, and has the
// process that is to complete it. Taking a slot ends the record that had it before.
//
// Lock order: a ledger's mutex is a leaf.
#pragma once

#include <openreg/device.h>
#include <openreg/ipc.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "extras/os_extras.h"

namespace openreg {

// Names a process's ledger among all that ever were.
struct LedgerIdentity {
  int32_t process;
  int32_t file;    // the ledger's number in that process
  uint64_t start;  // as of os::process_start()
  std::array<uint64_t, 2> key;

  bool operator==(const LedgerIdentity&) const = default;
};

// Names a record of an event: a slot, and the word that it holds while the record is pending.
struct RecordName {
  uint32_t slot;
  uint32_t word;

  // As one number that is not 0.
  uint64_t pack() const { return uint64_t{word} << 32 | (slot + 1); }
  static RecordName unpack(uint64_t packed) {
    return {static_cast<uint32_t>(packed) - 1, static_cast<uint32_t>(packed >> 32)};
  }
};

// The layout of a ledger's memory file. Fresh files read as zeros. Pages are taken when first
// touched, so the number of slots costs address space only.
struct LedgerFile {
  static constexpr uint64_t current_version = 2;
  static constexpr uint32_t slot_count = 1u << 18;
  static constexpr uint32_t no_slot = ~0u;

  struct Arena {
    uint64_t file;    // the number of the arena's file in that process
    uint64_t number;  // as of os::FileIdentity, so that another file is recognized
    uint64_t size;
  };

  struct Event {
    // Odd while there is an event: it goes up when one is made and when it is destroyed.
    std::atomic<uint32_t> generation;
    std::atomic<uint64_t> latest;  // the packed name of its latest record, 0: none

    static bool is_live(uint64_t generation) { return generation % 2 == 1; }
  };

  // A record that another process made.
  struct PeersRecord {
    std::atomic<uint32_t> word;
    std::atomic<uint32_t> process;  // the one that made it
    std::atomic<uint64_t> start;    // as of os::process_start()
  };

  struct Lease {
    static constexpr uint32_t no_holder = 0;   // granted, not taken
    static constexpr uint32_t no_lease = ~0u;  // not granted

    // generation << 32 | number of the process that holds it. A generation is never 0.
    std::atomic<uint64_t> state;
    std::atomic<uint64_t> holder_start;
    std::atomic<uint32_t> next_ended;  // slot + 1 of the next in the list of ended leases, 0: last
  };

  uint64_t version;  // 0 until the rest is valid
  LedgerIdentity identity;
  std::atomic<uint32_t> first_ended;  // slot + 1; holders push, the owner takes the whole list
  Arena arenas[OPENREG_MAX_DEVICES];
  Event events[slot_count];
  std::atomic<uint32_t> records[slot_count];
  Lease leases[slot_count];
  std::atomic<uint32_t> next_peers_record;
  PeersRecord peers_records[slot_count];  // slots from slot_count on

  static bool is_peers(RecordName record) { return record.slot >= slot_count; }
  static bool is_valid(RecordName record) { return record.slot < 2 * slot_count; }
  PeersRecord& peers_record(RecordName record) { return peers_records[record.slot - slot_count]; }
  std::atomic<uint32_t>& word_of(RecordName record) {
    return is_peers(record) ? peers_record(record).word : records[record.slot];
  }
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share no locks");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share no locks");

// Which slots are in use.
class SlotPool {
 public:
  std::optional<uint32_t> take();
  void give_back(uint32_t slot) { free_.push_back(slot); }  // never throws

  // How many slots were ever taken.
  uint32_t used() const { return used_; }

 private:
  uint32_t used_ = 0;
  std::vector<uint32_t> free_;
};

// This process's ledger. Made once and never destroyed.
class Ledger {
 public:
  static orError_t get(Ledger** ledger);

  // The ledger, null if there is none.
  static Ledger* existing();

  const LedgerIdentity& identity() const { return file_->identity; }
  LedgerFile& file() { return *file_; }

  // Enters the file of a device's memory.
  orError_t publish(int device, int memory_file);

  // --- Events

  orError_t make_event(uint32_t* slot);
  uint32_t generation_of_event(uint32_t slot) const;
  void set_latest(uint32_t event, RecordName record);
  // The event's latest record if another process made it.
  std::optional<RecordName> peers_latest(uint32_t event) const;
  void drop_event(uint32_t slot);

  orError_t make_record(RecordName* record);
  void complete(RecordName record, bool has_failed);
  void drop_record(RecordName record);

  // --- Leases, by number

  orError_t grant(uint64_t* lease);
  orError_t revoke(uint64_t lease);
  std::vector<uint64_t> collect(bool checks_holders);

 private:
  explicit Ledger(LedgerFile* file) : file_(file), is_granted_(LedgerFile::slot_count) {}

  static orError_t make(Ledger** ledger);
  void take_ended(std::vector<uint32_t>* ended);
  void find_dead_holders(std::vector<uint32_t>* found) const OPENREG_REQUIRES(mutex_);

  LedgerFile* const file_;

  Mutex mutex_;
  SlotPool events_ OPENREG_GUARDED_BY(mutex_);
  SlotPool records_ OPENREG_GUARDED_BY(mutex_);
  SlotPool leases_ OPENREG_GUARDED_BY(mutex_);
  std::vector<bool> is_granted_ OPENREG_GUARDED_BY(mutex_);
};

}  // namespace openreg
