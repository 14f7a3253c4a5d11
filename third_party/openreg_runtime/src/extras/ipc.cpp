#include <openreg/ipc.h>

#include <array>
#include <bit>
#include <memory>
#include <new>

#include "base/handle.h"
#include "base/process.h"
#include "extras/ledger.h"
#include "extras/peer.h"
#include "extras/shared_event.h"
#include "memory/allocation.h"
#include "memory/arena.h"
#include "memory/extra_memory.h"
#include "queue/device.h"
#include "queue/event.h"

namespace openreg {
namespace {

// The kinds of handles, by their types in C.
template <typename Handle>
constexpr uint16_t ticket_kind = 0;
template <>
constexpr uint16_t ticket_kind<orIpcMemHandle_t> = 0x6f6d;
template <>
constexpr uint16_t ticket_kind<orIpcEventHandle_t> = 0x6f65;
template <>
constexpr uint16_t ticket_kind<orIpcLeaseHandle_t> = 0x6f6c;

// What the bytes of a handle are.
struct Ticket {
  LedgerIdentity ledger;
  uint16_t kind = 0;      // as of ticket_kind
  uint16_t device = 0;    // memory
  uint32_t checksum = 0;  // of the whole with this member 0
  uint64_t first = 0;     // memory: offset in the arena; event: slot; lease: number
  uint64_t second = 0;    // memory: size; event: generation
  uint64_t reserved = 0;
};

static_assert(sizeof(Ticket) == OPENREG_IPC_HANDLE_SIZE);
static_assert(std::has_unique_object_representations_v<Ticket>, "every byte is checked");

// The 32-bit FNV-1a hash.
uint32_t checksum_of(Ticket ticket) {
  ticket.checksum = 0;
  const auto bytes = std::bit_cast<std::array<uint8_t, sizeof(ticket)>>(ticket);
  uint32_t hash = 2166136261u;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 16777619u;
  return hash;
}

template <typename Handle>
void write_handle(Handle* handle, Ticket ticket) {
  ticket.kind = ticket_kind<Handle>;
  ticket.checksum = checksum_of(ticket);
  *handle = std::bit_cast<Handle>(ticket);
}

template <typename Handle>
orError_t read_handle(const Handle& handle, const char* function, Ticket* ticket) {
  *ticket = std::bit_cast<Ticket>(handle);
  if (ticket->kind == ticket_kind<Handle> && ticket->checksum == checksum_of(*ticket))
    return orSuccess;
  return fail(orErrorInvalidResourceHandle,
              concat(function, ": the handle is damaged, or of another kind"));
}

constinit HandleTable<HeldLease, HandleKind::Lease> held_leases;

}  // namespace
}  // namespace openreg

using namespace openreg;

extern "C" {

// --- Memory

orError_t orIpcGetMemHandle(orIpcMemHandle_t* handle, void* pointer) {
  constexpr const char* function = "orIpcGetMemHandle";
  return guarded_result(function, handle, [&] {
    if (const orError_t error = check_not_forked()) return error;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (find_imported(address)) {
      return fail(orErrorNotPermitted,
                  concat(function,
                         ": the memory was received from another process, and only the process "
                         "that owns it can share it"));
    }
    const AddressSpace* space = AddressSpace::get();
    const Device* device = space == nullptr ? nullptr : Device::active(space->device_of(address));
    std::optional<Allocation> found;
    if (device != nullptr) found = device->arena().find(address);
    if (!found) {
      return fail(orErrorInvalidValue, concat(function, ": expected device memory, got ", pointer));
    }
    Ledger* ledger = nullptr;
    if (const orError_t error = Ledger::get(&ledger)) return error;
    const int index = device->index();
    if (const orError_t error = ledger->publish(index, device->memory_file())) return error;
    write_handle(handle, Ticket{.ledger = ledger->identity(),
                                .device = static_cast<uint16_t>(index),
                                .first = found->address - space->base_of(index),
                                .second = found->size});
    return orSuccess;
  });
}

orError_t orIpcOpenMemHandle(void** pointer, orIpcMemHandle_t handle, unsigned flags) {
  constexpr const char* function = "orIpcOpenMemHandle";
  return guarded_result(function, pointer, [&] {
    if (const orError_t error = check_not_forked()) return error;
    if (flags != 0) {
      return fail(orErrorInvalidValue, concat(function, ": expected flags 0, got ", flags));
    }
    Ticket ticket;
    if (const orError_t error = read_handle(handle, function, &ticket)) return error;
    std::shared_ptr<Peer> peer;
    if (const orError_t error = Peer::open(ticket.ledger, &peer)) return error;
    if (ticket.device < OPENREG_MAX_DEVICES) {
      Device* own = nullptr;  // what is imported belongs to it; with it there is an address space
      if (const orError_t error = Device::get(ticket.device, &own)) return error;
    }
    uintptr_t address = 0;
    if (const orError_t error =
            open_allocation(peer, ticket.device, ticket.first, ticket.second, &address)) {
      return error;
    }
    *pointer = reinterpret_cast<void*>(address);
    return orSuccess;
  });
}

orError_t orIpcCloseMemHandle(void* pointer) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    if (close_allocation(reinterpret_cast<uintptr_t>(pointer))) return orSuccess;
    return fail(orErrorInvalidValue, concat("orIpcCloseMemHandle: ", pointer,
                                            " is not the start of an opened allocation"));
  });
}

// --- Events

orError_t orIpcGetEventHandle(orIpcEventHandle_t* handle, orEvent_t event) {
  constexpr const char* function = "orIpcGetEventHandle";
  return guarded_result(function, handle, [&] {
    if (const orError_t error = check_not_forked()) return error;
    EventRef found;
    if (const orError_t error = EventRef::find(event, function, &found)) return error;
    if (!found.is_interprocess()) {
      return fail(orErrorInvalidResourceHandle,
                  concat(function, ": expected an event created with orEventInterprocess"));
    }
    if (found.is_peers()) {
      return fail(orErrorNotPermitted,
                  concat(function,
                         ": the event was received from another process, and only the process "
                         "that created it can share it"));
    }
    std::shared_ptr<SharedEvent> shared;
    if (const orError_t error = found.get_shared(&shared)) return error;
    const auto& own = static_cast<const OwnSharedEvent&>(*shared);
    write_handle(handle, Ticket{.ledger = Ledger::existing()->identity(),
                                .first = own.slot(),
                                .second = own.generation()});
    return orSuccess;
  });
}

orError_t orIpcOpenEventHandle(orEvent_t* event, orIpcEventHandle_t handle) {
  constexpr const char* function = "orIpcOpenEventHandle";
  return guarded_result(function, event, [&] {
    if (const orError_t error = check_not_forked()) return error;
    Ticket ticket;
    if (const orError_t error = read_handle(handle, function, &ticket)) return error;
    if (ticket.first >= LedgerFile::slot_count || !LedgerFile::Event::is_live(ticket.second)) {
      return fail(orErrorInvalidResourceHandle, concat(function, ": the handle names no event"));
    }
    PeerEvent opened{nullptr, static_cast<uint32_t>(ticket.first),
                     static_cast<uint32_t>(ticket.second)};
    if (const orError_t error = Peer::open(ticket.ledger, &opened.peer)) return error;
    std::optional<PeerRecord> latest;
    if (const orError_t error = find_latest(opened, &latest)) return error;
    *event = add_event({.shared = std::make_shared<PeersSharedEvent>(std::move(opened))},
                       orEventDisableTiming | orEventInterprocess | event_is_peers);
    return orSuccess;
  });
}

// --- Leases

orError_t orIpcLeaseGrant(unsigned long long* lease, orIpcLeaseHandle_t* handle) {
  return guarded([&] {
    if (lease == nullptr || handle == nullptr) return fail_null("orIpcLeaseGrant");
    if (const orError_t error = check_not_forked()) return error;
    Ledger* ledger = nullptr;
    if (const orError_t error = Ledger::get(&ledger)) return error;
    uint64_t number = 0;
    if (const orError_t error = ledger->grant(&number)) return error;
    write_handle(handle, Ticket{.ledger = ledger->identity(), .first = number});
    *lease = number;
    return orSuccess;
  });
}

orError_t orIpcLeaseFind(unsigned long long* lease, orIpcLeaseHandle_t handle) {
  constexpr const char* function = "orIpcLeaseFind";
  return guarded_result(function, lease, [&] {
    Ticket ticket;
    if (const orError_t error = read_handle(handle, function, &ticket)) return error;
    const Ledger* own = Ledger::existing();
    *lease = own != nullptr && own->identity() == ticket.ledger ? ticket.first : 0;
    return orSuccess;
  });
}

orError_t orIpcLeaseRevoke(unsigned long long lease) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    Ledger* ledger = nullptr;
    if (const orError_t error = Ledger::get(&ledger)) return error;
    return ledger->revoke(lease);
  });
}

orError_t orIpcLeaseTake(orIpcLease_t* lease, orIpcLeaseHandle_t handle) {
  constexpr const char* function = "orIpcLeaseTake";
  return guarded_result(function, lease, [&] {
    if (const orError_t error = check_not_forked()) return error;
    Ticket ticket;
    if (const orError_t error = read_handle(handle, function, &ticket)) return error;
    std::shared_ptr<Peer> peer;
    if (const orError_t error = Peer::open(ticket.ledger, &peer)) return error;
    HeldLease held;
    if (const orError_t error = take_lease(std::move(peer), ticket.first, &held)) return error;
    try {
      *lease = to_handle<orIpcLease_t>(held_leases.add(held));
      return orSuccess;
    } catch (const std::bad_alloc&) {
      end_lease(held);
      throw;
    }
  });
}

orError_t orIpcLeaseEnd(orIpcLease_t lease) {
  return guarded([&] {
    if (lease == nullptr || is_forked()) return orSuccess;
    HeldLease held;
    if (!held_leases.remove(number_of(lease), &held)) {
      return fail_stale(number_of(lease), "orIpcLeaseEnd", "a lease");
    }
    end_lease(held);
    return orSuccess;
  });
}

orError_t orIpcLeaseCollect(orIpcLeaseFn ended, void* user_data, int checks_holders) {
  return guarded([&] {
    if (ended == nullptr) return fail(orErrorInvalidValue, "orIpcLeaseCollect: function is null");
    if (const orError_t error = check_not_forked()) return error;
    Ledger* ledger = Ledger::existing();
    if (ledger == nullptr) return orSuccess;
    for (const uint64_t lease : ledger->collect(checks_holders != 0)) ended(lease, user_data);
    return orSuccess;
  });
}

}  // extern "C"
