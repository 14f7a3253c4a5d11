#include "extras/peer.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"
#include "base/spin.h"
#include "base/wait_check.h"
#include "extras/os_extras.h"

namespace openreg {
namespace {

// How often a thread that waits for a peer looks whether the peer, and this process, still live. A
// completed record wakes the thread at once, so this decides only how soon a death is noticed.
constexpr int64_t liveness_check_ns = 50'000'000;

// The mapped arena of a peer's device.
struct ImportedArena {
  std::shared_ptr<Peer> peer;
  int device;
  size_t size;
  int opened;  // allocations
};

struct OpenedAllocation {
  size_t size;
  int count;
  uintptr_t arena;
};

using ImportedArenas = std::map<uintptr_t, ImportedArena>;  // by device address

struct Imports {
  Mutex mutex;
  std::vector<std::weak_ptr<Peer>> peers OPENREG_GUARDED_BY(mutex);
  ImportedArenas arenas OPENREG_GUARDED_BY(mutex);
  std::map<uintptr_t, OpenedAllocation> opened OPENREG_GUARDED_BY(mutex);
};

Imports& imports() {
  static auto* imports = new Imports;
  return *imports;
}

// So that a process without imports pays no lock when it looks for some.
std::atomic<int> imported_arena_count{0};

uintptr_t kernel_offset() { return static_cast<uintptr_t>(AddressSpace::get()->kernel_offset); }

orError_t fail_invalid(const char* why) {
  return fail(orErrorInvalidResourceHandle, concat("cannot open the handle: ", why));
}

// Opens a file of a peer. Fails with the reason why it cannot be had.
orError_t open_file_of(const LedgerIdentity& peer, uint64_t number, const char* what, int* file) {
  const bool has_ended = os::process_start(peer.process) != peer.start;
  if (!has_ended) {
    *file = os::open_memory_file(peer.process, static_cast<int>(number));
    if (*file >= 0) return orSuccess;
  }
  const std::string cause = os::error_text("open");
  if (has_ended || os::process_start(peer.process) != peer.start) {
    return fail(orErrorProcessEnded,
                concat("process ", peer.process, ", which shares the ", what, ", has ended"));
  }
  return fail(orErrorOperatingSystem,
              concat("cannot open the ", what, " that process ", peer.process, " shares: ", cause));
}

FailureRef make_failure(orError_t code, std::string message) {
  return std::make_shared<Failure>(code, std::move(message), 0, os::now_ns());
}

}  // namespace

orError_t Peer::open(const LedgerIdentity& identity, std::shared_ptr<Peer>* peer) {
  const Ledger* own = Ledger::existing();
  if (own != nullptr && own->identity() == identity) {
    return fail(orErrorNotPermitted, "the handle was made by this process itself");
  }
  const Lock lock(imports().mutex);
  std::vector<std::weak_ptr<Peer>>& peers = imports().peers;
  std::erase_if(peers, [](const std::weak_ptr<Peer>& known) { return known.expired(); });
  for (const std::weak_ptr<Peer>& known : peers) {
    *peer = known.lock();
    if (*peer != nullptr && (*peer)->identity() == identity) return orSuccess;
  }
  int file = -1;
  if (const orError_t error =
          open_file_of(identity, static_cast<uint64_t>(identity.file), "resource", &file)) {
    return error;
  }
  os::FileIdentity found{};
  void* memory = nullptr;
  if (os::identify_file(file, &found) && found.size == sizeof(LedgerFile)) {
    memory = os::reserve_addresses(sizeof(LedgerFile));
    if (memory != nullptr && !os::map_memory_file(memory, sizeof(LedgerFile), file)) {
      os::unmap(std::exchange(memory, nullptr), sizeof(LedgerFile));
    }
  }
  os::close_file(file);
  if (memory == nullptr) return fail_invalid("its process shares no ledger of this version");
  std::shared_ptr<Peer> opened;
  try {
    opened = std::make_shared<Peer>(identity, static_cast<LedgerFile*>(memory));
  } catch (const std::bad_alloc&) {
    os::unmap(memory, sizeof(LedgerFile));
    throw;
  }
  if (opened->file().version != LedgerFile::current_version ||
      opened->file().identity != identity) {
    return fail_invalid("it does not come from the process that it names");
  }
  peers.push_back(opened);
  *peer = std::move(opened);
  return orSuccess;
}

Peer::~Peer() { os::unmap(file_, sizeof(LedgerFile)); }

bool Peer::is_alive() const { return os::process_start(identity_.process) == identity_.start; }

// --- Events

namespace {

orError_t check_exists(const PeerEvent& event) {
  const LedgerFile::Event& slot = event.peer->file().events[event.slot];
  if (slot.generation.load(std::memory_order_acquire) == event.generation) return orSuccess;
  return fail(orErrorInvalidResourceHandle,
              concat("process ", event.peer->process(), " has destroyed the event"));
}

}  // namespace

orError_t find_latest(const PeerEvent& event, std::optional<PeerRecord>* record) {
  LedgerFile::Event& slot = event.peer->file().events[event.slot];
  const uint64_t latest = slot.latest.load(std::memory_order_acquire);
  if (const orError_t error = check_exists(event)) return error;
  if (latest == 0) return orSuccess;
  const RecordName name = RecordName::unpack(latest);
  if (!LedgerFile::is_valid(name)) return fail_invalid("the ledger of its process is damaged");
  *record = {event.peer, name};
  return orSuccess;
}

orError_t make_record(const PeerEvent& event, RecordName* record) {
  if (const orError_t error = check_exists(event)) return error;
  LedgerFile& file = event.peer->file();
  const uint32_t place =
      file.next_peers_record.fetch_add(1, std::memory_order_relaxed) % LedgerFile::slot_count;
  LedgerFile::PeersRecord& made = file.peers_records[place];
  static const uint64_t start = os::process_start(os::process_id());
  const uint32_t word = made.word.fetch_add(2, std::memory_order_acq_rel) + 2;
  made.process.store(static_cast<uint32_t>(os::process_id()), std::memory_order_relaxed);
  made.start.store(start, std::memory_order_relaxed);
  os::wake_all(made.word);
  *record = {LedgerFile::slot_count + place, word};
  return orSuccess;
}

void publish_record(const PeerEvent& event, RecordName record) {
  event.peer->file().events[event.slot].latest.store(record.pack(), std::memory_order_release);
}

void complete_record(Peer& peer, RecordName record, bool has_failed) {
  std::atomic<uint32_t>& word = peer.file().word_of(record);
  uint32_t expected = record.word;
  if (word.compare_exchange_strong(expected, record.word + 2 + (has_failed ? 1 : 0),
                                   std::memory_order_acq_rel)) {
    os::wake_all(word);
  }
}

int PeerRecord::maker() const {
  if (LedgerFile::is_peers(name)) {
    return static_cast<int>(file().peers_record(name).process.load(std::memory_order_relaxed));
  }
  return file().identity.process;
}

bool PeerRecord::is_maker_alive() const {
  const uint64_t start = LedgerFile::is_peers(name)
                             ? file().peers_record(name).start.load(std::memory_order_relaxed)
                             : file().identity.start;
  return os::process_start(maker()) == start;
}

bool PeerRecord::is_complete(FailureRef* failure) const {
  const std::atomic<uint32_t>& word = file().word_of(name);
  uint32_t now = word.load(std::memory_order_acquire);
  if (now == name.word) {
    if (is_maker_alive()) return false;
    now = word.load(std::memory_order_acquire);
    if (now == name.word) {
      *failure = make_failure(
          orErrorProcessEnded,
          concat("process ", maker(), " ended before it completed the event to wait for"));
      return true;
    }
  }
  // A later generation than the next says that the slot was given back: nothing is known then.
  if (now == name.word + 3) {
    *failure = make_failure(orErrorLaunchFailure,
                            concat("a stream of process ", maker(),
                                   " failed before it recorded the event to wait for"));
  }
  return true;
}

orError_t PeerRecord::wait(FailureRef* failure) const {
  const std::atomic<uint32_t>& word = file().word_of(name);
  const auto has_changed = [&] { return word.load(std::memory_order_acquire) != name.word; };
  if (!spin_until(has_changed, wait_spin_ns)) {
    while (!is_complete(failure)) {
      if (is_exiting()) return fail(orErrorNotPermitted, "the process is exiting");
      os::wait_for_change(word, name.word, liveness_check_ns);
      const orWaitCheckFn ends_early = wait_check::check;
      if (ends_early != nullptr && ends_early() != 0) return wait_check::fail_ended_early();
    }
  }
  is_complete(failure);
  return orSuccess;
}

// --- Leases

orError_t take_lease(std::shared_ptr<Peer> peer, uint64_t lease, HeldLease* held) {
  const uint32_t slot = static_cast<uint32_t>(lease) - 1;
  const uint64_t generation = lease >> 32 << 32;
  if (slot >= LedgerFile::slot_count || generation == 0) return fail_invalid("it names no lease");
  LedgerFile::Lease& taken = peer->file().leases[slot];
  const auto process = static_cast<uint32_t>(os::process_id());
  uint64_t expected = generation | LedgerFile::Lease::no_holder;
  if (!taken.state.compare_exchange_strong(expected, generation | process)) {
    return fail(orErrorInvalidResourceHandle,
                "cannot open the handle: it was received before, or withdrawn; a handle can be "
                "received once");
  }
  static const uint64_t start = os::process_start(os::process_id());
  taken.holder_start.store(start, std::memory_order_release);
  *held = {std::move(peer), slot};
  return orSuccess;
}

void end_lease(const HeldLease& held) {
  LedgerFile& file = held.peer->file();
  uint32_t first = file.first_ended.load(std::memory_order_relaxed);
  do {
    file.leases[held.slot].next_ended.store(first, std::memory_order_relaxed);
  } while (!file.first_ended.compare_exchange_weak(first, held.slot + 1, std::memory_order_release,
                                                   std::memory_order_relaxed));
}

// --- Memory

namespace {

// Maps `size` bytes of a file at an address of our choice, and at the kernel offset from it.
// Returns the first address, 0 if that cannot be done.
uintptr_t map_arena(int file, size_t size) {
  const size_t distance = kernel_offset();
  auto* memory = static_cast<char*>(os::reserve_addresses(distance + size));
  if (memory == nullptr) return 0;
  if (!os::map_memory_file(memory + distance, size, file)) {
    os::unmap(memory, distance + size);
    return 0;
  }
  if (distance > size) os::unmap(memory + size, distance - size);
  return reinterpret_cast<uintptr_t>(memory);
}

void unmap_arena(uintptr_t base, size_t size) {
  os::unmap(reinterpret_cast<void*>(base), size);
  if (kernel_offset() != 0) os::unmap(reinterpret_cast<void*>(base + kernel_offset()), size);
}

// Maps the arena of a peer's device, as its ledger describes it. Imports are locked.
orError_t import_arena(const std::shared_ptr<Peer>& peer, int device,
                       const LedgerFile::Arena& shared, ImportedArenas::iterator* arena)
    OPENREG_REQUIRES(imports().mutex) {
  if (kernel_offset() != 0 && shared.size > kernel_offset()) {
    return fail(orErrorNotSupported,
                concat("cannot open memory of process ", peer->process(), ": its devices have ",
                       shared.size, " bytes, all of this process's together ", kernel_offset(),
                       "; give both the same OPENREG_DEVICE_MEMORY"));
  }
  int file = -1;
  if (const orError_t error = open_file_of(peer->identity(), shared.file, "memory", &file)) {
    return error;
  }
  os::FileIdentity found{};
  const bool is_right =
      os::identify_file(file, &found) && found.number == shared.number && found.size == shared.size;
  const uintptr_t base = is_right ? map_arena(file, shared.size) : 0;
  const std::string cause = os::error_text("mmap");
  os::close_file(file);
  if (!is_right) return fail_invalid("its process has closed the file of its memory");
  if (base == 0) return fail(orErrorOperatingSystem, concat("cannot map shared memory: ", cause));
  try {
    *arena = imports().arenas.emplace(base, ImportedArena{peer, device, shared.size, 0}).first;
  } catch (const std::bad_alloc&) {
    unmap_arena(base, shared.size);
    throw;
  }
  imported_arena_count.store(static_cast<int>(imports().arenas.size()));
  return orSuccess;
}

const ForkLocks import_fork_locks([]() OPENREG_UNCHECKED_LOCKING { imports().mutex.lock(); },
                                  []() OPENREG_UNCHECKED_LOCKING { imports().mutex.unlock(); });

std::optional<ImportedAllocation> find_locked(uintptr_t address) OPENREG_REQUIRES(imports().mutex) {
  const auto after = imports().arenas.upper_bound(address);
  if (after == imports().arenas.begin()) return std::nullopt;
  const auto& [base, arena] = *std::prev(after);
  if (address - base >= arena.size) return std::nullopt;
  ImportedAllocation found{0, 0, arena.device, arena.peer->process()};
  const auto next = imports().opened.upper_bound(address);
  if (next != imports().opened.begin()) {
    const auto& [begin, allocation] = *std::prev(next);
    if (address - begin < allocation.size) {
      found.address = begin;
      found.size = allocation.size;
    }
  }
  return found;
}

std::optional<ImportedAllocation> find_opened(uintptr_t address) {
  if (imported_arena_count.load() == 0) return std::nullopt;
  const Lock lock(imports().mutex);
  return find_locked(address);
}

[[maybe_unused]] const bool is_peer_memory_installed = [] {
  find_imported = find_opened;
  return true;
}();

}  // namespace

orError_t open_allocation(const std::shared_ptr<Peer>& peer, int device, uint64_t offset,
                          uint64_t size, uintptr_t* address) {
  if (device < 0 || device >= OPENREG_MAX_DEVICES) return fail_invalid("it names no device");
  const Lock lock(imports().mutex);
  ImportedArenas& arenas = imports().arenas;
  auto arena = std::find_if(arenas.begin(), arenas.end(), [&](const auto& known) {
    return known.second.peer == peer && known.second.device == device;
  });
  // Read once: the peer may write to its ledger at any time. What is mapped stays as large as it
  // is.
  const LedgerFile::Arena shared = peer->file().arenas[device];
  const uint64_t arena_size = arena == arenas.end() ? shared.size : arena->second.size;
  if (size == 0 || offset > arena_size || size > arena_size - offset) {
    return fail_invalid("it names memory that its process does not have");
  }
  if (arena == arenas.end()) {
    if (const orError_t error = import_arena(peer, device, shared, &arena)) return error;
  }
  OpenedAllocation& opened =
      imports()
          .opened.try_emplace(arena->first + offset, OpenedAllocation{0, 0, arena->first})
          .first->second;
  opened.size = std::max<size_t>(opened.size, size);
  if (opened.count++ == 0) ++arena->second.opened;
  *address = arena->first + offset;
  return orSuccess;
}

bool close_allocation(uintptr_t address) {
  ImportedArenas::node_type unused;  // unmapped without the lock, as that may take long
  {
    const Lock lock(imports().mutex);
    const auto opened = imports().opened.find(address);
    if (opened == imports().opened.end()) return false;
    if (--opened->second.count > 0) return true;
    const auto arena = imports().arenas.find(opened->second.arena);
    imports().opened.erase(opened);
    if (--arena->second.opened == 0) unused = imports().arenas.extract(arena);
    imported_arena_count.store(static_cast<int>(imports().arenas.size()));
  }
  if (!unused.empty()) unmap_arena(unused.key(), unused.mapped().size);
  return true;
}

std::optional<ImportedAllocation> try_find_imported(uintptr_t address, bool* is_known) {
  *is_known = true;
  if (imported_arena_count.load() == 0) return std::nullopt;
  if (!imports().mutex.try_lock()) {
    *is_known = false;
    return std::nullopt;
  }
  const Lock lock(imports().mutex, std::adopt_lock);
  return find_locked(address);
}

}  // namespace openreg
