#include "extras/ledger.h"

#include <map>
#include <utility>

#include "base/mutex.h"
#include "base/os.h"

namespace openreg {
namespace {

std::atomic<Ledger*> ledger_of_process{nullptr};

constinit Mutex ledger_mutex;

orError_t fail_os(const char* call) {
  return fail(orErrorOperatingSystem,
              concat("cannot share with other processes: ", os::error_text(call)));
}

orError_t fail_full(const char* what) {
  return fail(orErrorMemoryAllocation, concat(LedgerFile::slot_count, " ", what,
                                              " are shared with other processes already"));
}

using LeaseState = LedgerFile::Lease;

uint32_t generation_of(uint64_t state) { return static_cast<uint32_t>(state >> 32); }
uint32_t holder_of(uint64_t state) { return static_cast<uint32_t>(state); }

uint64_t make_state(uint32_t generation, uint32_t holder) {
  return uint64_t{generation} << 32 | holder;
}

uint64_t lease_number_of(uint32_t slot, uint32_t generation) {
  return make_state(generation, slot + 1);
}

}  // namespace

std::optional<uint32_t> SlotPool::take() {
  if (!free_.empty()) {
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (used_ == LedgerFile::slot_count) return std::nullopt;
  // What give_back() needs comes now, as it must not fail.
  if (free_.capacity() <= used_) free_.reserve(2 * size_t{used_} + 1);
  return used_++;
}

orError_t Ledger::get(Ledger** ledger) {
  *ledger = existing();
  if (*ledger != nullptr) return orSuccess;
  const Lock lock(ledger_mutex);
  *ledger = existing();
  return *ledger != nullptr ? orSuccess : make(ledger);
}

Ledger* Ledger::existing() { return ledger_of_process.load(std::memory_order_acquire); }

orError_t Ledger::make(Ledger** ledger) {
  const int process = os::process_id();
  const uint64_t start = os::process_start(process);
  if (start == 0) return fail(orErrorOperatingSystem, "cannot read /proc/self/stat");
  std::array<uint64_t, 2> key;
  if (!os::fill_random(&key, sizeof(key))) return fail_os("getrandom");
  const int number = os::create_memory_file("openreg-ledger", sizeof(LedgerFile));
  if (number < 0) return fail_os("memfd_create");
  void* memory = os::reserve_addresses(sizeof(LedgerFile));
  if (memory == nullptr || !os::map_memory_file(memory, sizeof(LedgerFile), number)) {
    const orError_t error = fail_os("mmap");
    if (memory != nullptr) os::unmap(memory, sizeof(LedgerFile));
    os::close_file(number);
    return error;
  }
  auto* file = static_cast<LedgerFile*>(memory);
  file->identity = {process, number, start, key};
  file->version = LedgerFile::current_version;
  try {
    *ledger = new Ledger(file);
  } catch (const std::bad_alloc&) {
    os::unmap(memory, sizeof(LedgerFile));
    os::close_file(number);
    throw;
  }
  ledger_of_process.store(*ledger, std::memory_order_release);
  return orSuccess;
}

orError_t Ledger::publish(int device, int memory_file) {
  const Lock lock(mutex_);
  LedgerFile::Arena& arena = file_->arenas[device];
  if (arena.size != 0) return orSuccess;
  os::FileIdentity identity;
  if (!os::identify_file(memory_file, &identity)) return fail_os("fstat");
  arena = {static_cast<uint64_t>(memory_file), identity.number, identity.size};
  return orSuccess;
}

orError_t Ledger::make_event(uint32_t* slot) {
  const Lock lock(mutex_);
  const std::optional<uint32_t> taken = events_.take();
  if (!taken) return fail_full("events");
  *slot = *taken;
  // A process that sees it also sees that the slot's event before was destroyed.
  file_->events[*slot].latest.store(0, std::memory_order_release);
  file_->events[*slot].generation.fetch_add(1, std::memory_order_release);
  return orSuccess;
}

uint32_t Ledger::generation_of_event(uint32_t slot) const {
  return file_->events[slot].generation.load(std::memory_order_relaxed);
}

void Ledger::set_latest(uint32_t event, RecordName record) {
  file_->events[event].latest.store(record.pack(), std::memory_order_release);
}

std::optional<RecordName> Ledger::peers_latest(uint32_t event) const {
  const uint64_t latest = file_->events[event].latest.load(std::memory_order_acquire);
  if (latest == 0) return std::nullopt;
  const RecordName name = RecordName::unpack(latest);
  if (!LedgerFile::is_peers(name) || !LedgerFile::is_valid(name)) return std::nullopt;
  return name;
}

void Ledger::drop_event(uint32_t slot) {
  const Lock lock(mutex_);
  file_->events[slot].generation.fetch_add(1, std::memory_order_release);
  events_.give_back(slot);
}

orError_t Ledger::make_record(RecordName* record) {
  const Lock lock(mutex_);
  const std::optional<uint32_t> taken = records_.take();
  if (!taken) return fail_full("records of events");
  *record = {*taken, file_->records[*taken].load(std::memory_order_relaxed)};
  return orSuccess;
}

// The lowest bit of a record's word says that it failed, the others are its generation.
void Ledger::complete(RecordName record, bool has_failed) {
  std::atomic<uint32_t>& word = file_->records[record.slot];
  word.store(record.word + 2 + (has_failed ? 1 : 0), std::memory_order_release);
  os::wake_all(word);
}

void Ledger::drop_record(RecordName record) {
  file_->records[record.slot].store(record.word + 2, std::memory_order_release);
  const Lock lock(mutex_);
  records_.give_back(record.slot);
}

orError_t Ledger::grant(uint64_t* lease) {
  const Lock lock(mutex_);
  const std::optional<uint32_t> slot = leases_.take();
  if (!slot) return fail_full("leases");
  LeaseState& granted = file_->leases[*slot];
  uint32_t generation = generation_of(granted.state.load(std::memory_order_relaxed)) + 1;
  if (generation == 0) ++generation;
  granted.holder_start.store(0, std::memory_order_relaxed);
  granted.state.store(make_state(generation, LeaseState::no_holder), std::memory_order_release);
  is_granted_[*slot] = true;
  *lease = lease_number_of(*slot, generation);
  return orSuccess;
}

orError_t Ledger::revoke(uint64_t lease) {
  const uint32_t slot = holder_of(lease) - 1;
  const uint32_t generation = generation_of(lease);
  const Lock lock(mutex_);
  if (slot >= LedgerFile::slot_count || !is_granted_[slot] ||
      generation_of(file_->leases[slot].state.load(std::memory_order_relaxed)) != generation) {
    return fail(orErrorInvalidValue, concat("orIpcLeaseRevoke: there is no lease ", lease));
  }
  uint64_t expected = make_state(generation, LeaseState::no_holder);
  if (!file_->leases[slot].state.compare_exchange_strong(
          expected, make_state(generation, LeaseState::no_lease))) {
    return fail(orErrorNotPermitted,
                concat("orIpcLeaseRevoke: process ", holder_of(expected), " has taken the lease"));
  }
  is_granted_[slot] = false;
  leases_.give_back(slot);
  return orSuccess;
}

std::vector<uint64_t> Ledger::collect(bool checks_holders) {
  std::vector<uint64_t> numbers;
  if (!checks_holders && file_->first_ended.load(std::memory_order_relaxed) == 0) return numbers;
  const Lock lock(mutex_);
  std::vector<uint32_t> ended;
  // What is taken must not be lost, so the memory for all comes first.
  ended.reserve(2 * size_t{leases_.used()});
  numbers.reserve(leases_.used());
  // A holder reports before it dies, or not at all: look for the dead before taking the reports.
  if (checks_holders) find_dead_holders(&ended);
  take_ended(&ended);
  for (const uint32_t slot : ended) {
    if (!is_granted_[slot]) continue;  // its holder reported it and died
    is_granted_[slot] = false;
    std::atomic<uint64_t>& state = file_->leases[slot].state;
    const uint32_t generation = generation_of(state.load(std::memory_order_relaxed));
    state.store(make_state(generation, LeaseState::no_lease), std::memory_order_release);
    leases_.give_back(slot);
    numbers.push_back(lease_number_of(slot, generation));
  }
  return numbers;
}

// Other processes wrote the list: nothing in it may lead astray.
void Ledger::take_ended(std::vector<uint32_t>* ended) {
  uint32_t next = file_->first_ended.exchange(0, std::memory_order_acquire);
  for (uint32_t count = 0; next != 0 && count < LedgerFile::slot_count; ++count) {
    const uint32_t slot = next - 1;
    if (slot >= LedgerFile::slot_count) return;
    ended->push_back(slot);
    next = file_->leases[slot].next_ended.load(std::memory_order_relaxed);
  }
}

void Ledger::find_dead_holders(std::vector<uint32_t>* found) const {
  std::map<uint32_t, uint64_t> starts;  // of the processes looked at
  for (uint32_t slot = 0; slot < LedgerFile::slot_count; ++slot) {
    if (!is_granted_[slot]) continue;
    const LeaseState& lease = file_->leases[slot];
    const uint32_t holder = holder_of(lease.state.load(std::memory_order_acquire));
    if (holder == LeaseState::no_holder || holder == LeaseState::no_lease) continue;
    const auto [known, is_new] = starts.try_emplace(holder, 0);
    if (is_new) known->second = os::process_start(static_cast<int>(holder));
    const uint64_t start = lease.holder_start.load(std::memory_order_acquire);
    if (known->second == 0 || (start != 0 && start != known->second)) found->push_back(slot);
  }
}

}  // namespace openreg
