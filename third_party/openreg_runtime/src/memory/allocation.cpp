#include "memory/allocation.h"

#include <openreg/device.h>

#include <array>
#include <cstdlib>
#include <map>
#include <new>
#include <optional>

#include "base/device_number.h"
#include "base/mutex.h"
#include "base/process.h"
#include "base/setting.h"
#include "base/trace.h"
#include "memory/arena.h"
#include "memory/extra_memory.h"

namespace openreg {
namespace {

struct PinnedAllocation {
  uintptr_t address;
  size_t size;
  int device;
  bool is_registered = false;  // by orHostRegister: the memory is the caller's
};

struct PinnedMemory {
  mutable Mutex mutex;
  std::map<uintptr_t, PinnedAllocation> live OPENREG_GUARDED_BY(mutex);
};

PinnedMemory& pinned_memory() {
  static PinnedMemory* memory = new PinnedMemory;
  return *memory;
}

std::optional<PinnedAllocation> find_locked(const PinnedMemory& memory, uintptr_t address)
    OPENREG_REQUIRES(memory.mutex) {
  const auto after = memory.live.upper_bound(address);
  if (after == memory.live.begin()) return std::nullopt;
  const PinnedAllocation& found = std::prev(after)->second;
  if (address - found.address >= found.size) return std::nullopt;
  return found;
}

std::optional<PinnedAllocation> find_pinned(uintptr_t address) {
  const PinnedMemory& memory = pinned_memory();
  const Lock lock(memory.mutex);
  return find_locked(memory, address);
}

// A device that has been created, whose addresses a pointer is among; without an arena if there is
// none.
struct Owner {
  int device = -1;
  Arena* arena = nullptr;

  explicit operator bool() const { return arena != nullptr; }
};

Owner owner_of(uintptr_t address) {
  const AddressSpace* space = AddressSpace::get();
  if (space == nullptr) return {};
  const int device = space->device_of(address);
  return {device, arena_of(device)};
}

bool is_kernel_address(uintptr_t address) {
  if (watchable_memory.is_kernel_address(address)) return true;
  const AddressSpace* space = AddressSpace::get();
  if (space == nullptr || space->kernel_offset == 0) return false;
  return space->is_kernel_address(address) ||
         find_imported(address - static_cast<uintptr_t>(space->kernel_offset)).has_value();
}

uintptr_t to_address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// `found` is the allocation that the address lies in.
orError_t find_device_place(int device, const std::optional<Allocation>& found, uintptr_t address,
                            size_t size, const char* function, Place* place) {
  if (!found) {
    return fail(orErrorIllegalAddress, concat(function, ": ", reinterpret_cast<void*>(address),
                                              " is in no live allocation of device ", device));
  }
  const size_t offset = address - found->address;
  if (size > found->size - offset) {
    return fail(orErrorInvalidValue,
                concat(function, ": ", size, " bytes at offset ", offset,
                       " exceed their allocation of ", found->size, " bytes on device ", device));
  }
  const auto kernel_offset = static_cast<uintptr_t>(AddressSpace::get()->kernel_offset);
  *place = {orMemoryTypeDevice, device, reinterpret_cast<void*>(address + kernel_offset)};
  return orSuccess;
}

void describe(trace::Span& span, int device, uintptr_t address, size_t size) {
  span.record().device = device;
  span.record().address = address;
  span.record().bytes = size;
}

orError_t fail_not_allocated(const char* function, const void* pointer) {
  return fail(orErrorInvalidValue,
              concat(function, ": ", pointer, " is not the start of a live allocation"));
}

orPointerAttributes attributes_of(uintptr_t address) {
  if (const Owner owner = owner_of(address)) {
    if (const std::optional<Allocation> found = owner.arena->find(address)) {
      return {orMemoryTypeDevice, owner.device, reinterpret_cast<void*>(found->address),
              found->size};
    }
  } else if (const std::optional<ImportedAllocation> imported = find_imported(address)) {
    if (imported->address != 0) {
      return {orMemoryTypeDevice, imported->device, reinterpret_cast<void*>(imported->address),
              imported->size};
    }
  } else if (const std::optional<PinnedAllocation> found = find_pinned(address)) {
    return {orMemoryTypeHost, found->device, reinterpret_cast<void*>(found->address), found->size};
  }
  return {orMemoryTypeUnregistered, -1, nullptr, 0};
}

}  // namespace

orError_t find_place(const void* pointer, size_t size, const char* function, Place* place) {
  if (pointer == nullptr) {
    return fail(orErrorInvalidValue, concat(function, ": expected a pointer, got null"));
  }
  const uintptr_t address = to_address(pointer);
  if (const Owner owner = owner_of(address)) {
    return find_device_place(owner.device, owner.arena->find(address), address, size, function,
                             place);
  }
  if (const std::optional<ImportedAllocation> imported = find_imported(address)) {
    std::optional<Allocation> found;
    if (imported->address != 0) found = Allocation{imported->address, imported->size};
    return find_device_place(imported->device, found, address, size, function, place);
  }
  if (is_kernel_address(address)) {
    return fail(orErrorInvalidValue,
                concat(function, ": expected a device address, got the kernel address ", pointer));
  }
  const std::optional<PinnedAllocation> pinned = find_pinned(address);
  if (pinned && size > pinned->size - (address - pinned->address)) {
    return fail(orErrorInvalidValue,
                concat(function, ": ", size, " bytes at offset ", address - pinned->address,
                       " exceed their pinned allocation of ", pinned->size, " bytes"));
  }
  if (size > UINTPTR_MAX - address) {
    return fail(orErrorInvalidValue,
                concat(function, ": ", size, " bytes do not fit behind the address ", pointer));
  }
  *place = {pinned ? orMemoryTypeHost : orMemoryTypeUnregistered, -1,
            reinterpret_cast<void*>(address + watchable_memory.kernel_offset(address))};
  return orSuccess;
}

namespace {

// Arenas that a fork has locked, under the lock of pinned memory. Another thread may make a device
// meanwhile.
std::array<Arena*, OPENREG_MAX_DEVICES> locked_arenas{};

// Clang cannot follow a lock from one function to another.
void lock_allocations() OPENREG_UNCHECKED_LOCKING {
  pinned_memory().mutex.lock();
  for (int i = 0; i < OPENREG_MAX_DEVICES; ++i) {
    Arena* arena = arena_of(i);
    locked_arenas[static_cast<size_t>(i)] = arena;
    if (arena != nullptr) arena->lock();
  }
}

void unlock_allocations() OPENREG_UNCHECKED_LOCKING {
  for (Arena* arena : locked_arenas) {
    if (arena != nullptr) arena->unlock();
  }
  pinned_memory().mutex.unlock();
}

const ForkLocks allocation_fork_locks(lock_allocations, unlock_allocations);

}  // namespace

// --- Device memory

orError_t allocate(int device, size_t size, void** pointer) {
  Arena& arena = *arena_of(device);
  trace::Span span(orActivityMemory, "orMalloc");
  const uintptr_t address = arena.allocate(size);
  describe(span, device, address, size);
  if (address == 0) {
    return fail(orErrorMemoryAllocation,
                concat("orMalloc: device ", device, " has no free range of ", size,
                       " bytes; its largest has ", arena.largest_free_size(), ", ",
                       arena.free_size(), " of ", settings().device_memory, " are free"));
  }
  *pointer = reinterpret_cast<void*>(address);
  return orSuccess;
}

orError_t check_allocated(const void* pointer, int* device) {
  const uintptr_t address = to_address(pointer);
  const Owner owner = owner_of(address);
  if (!owner) return fail_not_allocated("orFree", pointer);
  const std::optional<Allocation> found = owner.arena->find(address);
  if (!found || found->address != address) return fail_not_allocated("orFree", pointer);
  *device = owner.device;
  return orSuccess;
}

orError_t release(void* pointer) {
  const uintptr_t address = to_address(pointer);
  const Owner owner = owner_of(address);
  trace::Span span(orActivityMemory, "orFree");
  const size_t size = owner.arena->release(address);
  if (size == 0) return fail_not_allocated("orFree", pointer);
  describe(span, owner.device, address, size);
  return orSuccess;
}

orError_t check_mappable(const void* pointer, size_t size, const char* function) {
  constexpr size_t step = OPENREG_MAPPING_GRANULARITY;
  if (size != 0 && size % step == 0 && to_address(pointer) % step == 0) return orSuccess;
  return fail(orErrorInvalidValue, concat(function, ": expected multiples of ", step, ", got ",
                                          size, " bytes at ", pointer));
}

orError_t reserve(int device, size_t size, void** pointer) {
  const uintptr_t address = arena_of(device)->reserve(size);
  if (address == 0) {
    return fail(orErrorMemoryAllocation, concat("orMemAddressReserve: device ", device, " has no ",
                                                size, " bytes of addresses"));
  }
  *pointer = reinterpret_cast<void*>(address);
  return orSuccess;
}

orError_t end_reservation(void* pointer) {
  const uintptr_t address = to_address(pointer);
  const Owner owner = owner_of(address);
  if (owner && owner.arena->end_reservation(address)) return orSuccess;
  return fail(orErrorInvalidValue,
              concat("orMemAddressFree: ", pointer,
                     " is not the start of reserved addresses without memory"));
}

namespace {

orError_t fail_not_all(const char* function, const void* pointer, size_t size, const char* what) {
  return fail(orErrorInvalidValue, concat(function, ": the ", size, " bytes at ", pointer,
                                          " are not reserved addresses ", what, " memory"));
}

}  // namespace

orError_t check_unmapped(const void* pointer, size_t size, int* device) {
  const Owner owner = owner_of(to_address(pointer));
  if (!owner || !owner.arena->is_unmapped(to_address(pointer), size)) {
    return fail_not_all("orMemMap", pointer, size, "without");
  }
  *device = owner.device;
  return orSuccess;
}

orError_t check_mapped(const void* pointer, size_t size, int* device) {
  const Owner owner = owner_of(to_address(pointer));
  if (!owner || !owner.arena->is_mapped(to_address(pointer), size)) {
    return fail_not_all("orMemUnmap", pointer, size, "with");
  }
  *device = owner.device;
  return orSuccess;
}

orError_t map(int device, void* pointer, size_t size) {
  Arena& arena = *arena_of(device);
  trace::Span span(orActivityMemory, "orMemMap");
  describe(span, device, to_address(pointer), size);
  if (arena.map(to_address(pointer), size)) return orSuccess;
  return fail(orErrorMemoryAllocation,
              concat("orMemMap: device ", device, " has no ", size, " bytes; ", arena.free_size(),
                     " of ", settings().device_memory, " are free"));
}

orError_t unmap(int device, void* pointer, size_t size) {
  trace::Span span(orActivityMemory, "orMemUnmap");
  describe(span, device, to_address(pointer), size);
  if (arena_of(device)->unmap(to_address(pointer), size)) return orSuccess;
  return fail_not_all("orMemUnmap", pointer, size, "with");
}

// --- Pinned memory

orError_t allocate_pinned(size_t size, void** pointer) {
  trace::Span span(orActivityMemory, "orMallocHost");
  auto* memory = reinterpret_cast<void*>(watchable_memory.allocate(size));
  if (memory == nullptr && posix_memalign(&memory, OPENREG_MEMORY_ALIGNMENT, size) != 0) {
    return fail(orErrorMemoryAllocation, concat("orMallocHost: the host has no ", size, " bytes"));
  }
  const uintptr_t address = to_address(memory);
  describe(span, current_device(), address, size);
  PinnedMemory& pinned = pinned_memory();
  try {
    const Lock lock(pinned.mutex);
    pinned.live[address] = {address, size, current_device()};
  } catch (const std::bad_alloc&) {
    if (!watchable_memory.release(address, size)) std::free(memory);
    throw;
  }
  *pointer = memory;
  return orSuccess;
}

orError_t check_pinned(const void* pointer, const char* function) {
  const std::optional<PinnedAllocation> found = find_pinned(to_address(pointer));
  if (!found || found->address != to_address(pointer) || found->is_registered) {
    return fail_not_allocated(function, pointer);
  }
  return orSuccess;
}

orError_t release_pinned(void* pointer, const char* function) {
  trace::Span span(orActivityMemory, function);
  PinnedMemory& memory = pinned_memory();
  std::map<uintptr_t, PinnedAllocation>::node_type node;
  {
    const Lock lock(memory.mutex);
    node = memory.live.extract(to_address(pointer));
  }
  if (node.empty()) return fail_not_allocated(function, pointer);
  describe(span, node.mapped().device, node.mapped().address, node.mapped().size);
  try {
    if (!watchable_memory.release(node.mapped().address, node.mapped().size)) std::free(pointer);
  } catch (const std::bad_alloc&) {
    const Lock lock(memory.mutex);
    memory.live.insert(std::move(node));  // the node has its memory
    throw;
  }
  return orSuccess;
}

}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orHostRegister(void* pointer, size_t size) {
  return guarded([&] {
    constexpr const char* function = "orHostRegister";
    const uintptr_t address = to_address(pointer);
    if (pointer == nullptr || size == 0 || size > UINTPTR_MAX - address) {
      return fail(orErrorInvalidValue,
                  concat(function, ": expected memory, got ", size, " bytes at ", pointer));
    }
    if (const orError_t error = check_not_forked()) return error;
    if (const orError_t error = check_device(current_device(), function)) return error;
    const bool is_device_memory =
        owner_of(address) || find_imported(address) || is_kernel_address(address);
    PinnedMemory& memory = pinned_memory();
    const Lock lock(memory.mutex);
    const auto next = memory.live.lower_bound(address);
    if (is_device_memory || find_locked(memory, address) ||
        (next != memory.live.end() && next->first - address < size)) {
      return fail(orErrorInvalidValue, concat(function, ": a part of the ", size, " bytes at ",
                                              pointer, " is device or pinned memory"));
    }
    memory.live[address] = {address, size, current_device(), /*is_registered=*/true};
    return orSuccess;
  });
}

orError_t orHostUnregister(void* pointer) {
  return guarded([&] {
    PinnedMemory& memory = pinned_memory();
    const Lock lock(memory.mutex);
    const auto found = memory.live.find(to_address(pointer));
    if (found == memory.live.end() || !found->second.is_registered) {
      return fail(orErrorInvalidValue,
                  concat("orHostUnregister: ", pointer, " is not the start of registered memory"));
    }
    memory.live.erase(found);
    return orSuccess;
  });
}

orError_t orMemGetInfo(size_t* free_size, size_t* total_size, int index) {
  return guarded([&] {
    if (free_size == nullptr || total_size == nullptr) return fail_null("orMemGetInfo");
    if (const orError_t error = check_not_forked()) return error;
    if (const orError_t error = check_device(index, "orMemGetInfo")) return error;
    const Arena* arena = arena_of(index);
    *total_size = settings().device_memory;
    *free_size = arena == nullptr ? *total_size : arena->free_size();
    return orSuccess;
  });
}

orError_t orPointerGetAttributes(orPointerAttributes* attributes, const void* pointer) {
  return guarded_result("orPointerGetAttributes", attributes, [&] {
    *attributes = attributes_of(to_address(pointer));
    return orSuccess;
  });
}

orError_t orHostGetKernelPointer(void** kernel_pointer, const void* pointer) {
  return guarded_result("orHostGetKernelPointer", kernel_pointer, [&] {
    const uintptr_t address = to_address(pointer);
    *kernel_pointer = reinterpret_cast<void*>(address + watchable_memory.kernel_offset(address));
    return orSuccess;
  });
}

}  // extern "C"
