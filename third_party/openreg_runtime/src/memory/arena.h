// Arenas: one device's memory, and the addresses of all devices.
//
// See Note [Two addresses] in openreg/memory.h.
//
// Note [Free memory reads as zeros]
// Invariant of an arena: every byte outside a live allocation is zero. Fresh pages are zero; a
// free gives whole free pages back to the machine and clears the rest. So an allocation has
// nothing to do.
//
// Note [Reserved addresses]
// Behind the addresses of its memory a device has more, as many as the machine allows, for
// orMemAddressReserve(). Its memory file is as long, so that such an address is mapped like any
// other, and orMemMap() only counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "memory/reserved.h"

namespace openreg {

// The addresses of all devices: device d has the `stride` bytes from device_base + d * stride, and
// the first `capacity` of them are those of orMalloc(). Fixed once made.
struct AddressSpace {
  uintptr_t device_base;
  ptrdiff_t kernel_offset;
  size_t capacity;
  size_t stride;
  int device_count;

  // Reserves the addresses. Called once, under the lock that creates devices.
  static orError_t reserve(const AddressSpace** space);

  // The reserved address space, null before reserve(). Async-signal-safe.
  static const AddressSpace* get();

  uintptr_t base_of(int device) const { return device_base + stride * size_t(device); }

  // The device whose memory a device address lies in, -1 if it is none.
  int device_of(uintptr_t address) const;

  // True for what device_of() of the address minus the kernel offset knows, if the two differ.
  bool is_kernel_address(uintptr_t address) const;
};

// Hands out ranges of a device's memory: the best fit, and the lowest of equal fits.
//
// Threads: any; each function locks the arena for a moment. release() gives pages back to the
// machine outside the lock, as that takes long for large ranges.
class Arena {
 public:
  // Has the memory of `capacity` bytes, and the `stride` bytes of addresses from the base, which
  // must be mapped at the kernel addresses and read as zeros.
  Arena(uintptr_t device_base, ptrdiff_t kernel_offset, size_t capacity, size_t stride);

  // Returns the device address of `size` > 0 bytes, 0 if no free range is large enough.
  uintptr_t allocate(size_t size);

  // Ends an allocation that starts at the address. Returns its size, 0 if there is none. If the
  // host is out of memory, which both allocate() and release() need a little of, nothing has
  // changed.
  size_t release(uintptr_t address);

  // See orMemAddressReserve() and those after it. Each does nothing and returns 0 or false if it
  // cannot do what it is asked for.
  uintptr_t reserve(size_t size);
  bool end_reservation(uintptr_t address);
  bool map(uintptr_t address, size_t size);
  bool unmap(uintptr_t address, size_t size);

  // Whether the range lies in one reservation, and all of it is mapped or none.
  bool is_mapped(uintptr_t address, size_t size) const;
  bool is_unmapped(uintptr_t address, size_t size) const;

  // The allocation that the address lies in, or the mapped part of reserved addresses.
  std::optional<Allocation> find(uintptr_t address) const;

  // As find(); stores false and knows nothing if the arena is locked. Neither waits nor
  // allocates, so that a fault handler may call it.
  std::optional<Allocation> try_find(uintptr_t address, bool* is_known) const;

  // Bytes that are neither allocated nor mapped.
  size_t free_size() const;
  size_t largest_free_size() const;

  // Checks the bookkeeping: live and free ranges are sorted, disjoint, aligned and inside the
  // arena, free ranges do not touch, and both indexes of free ranges agree.
  bool is_valid() const;

  // Held by the forking thread over fork(), so that the child finds the arena unlocked.
  void lock() OPENREG_ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() OPENREG_RELEASE(mutex_) { mutex_.unlock(); }

 private:
  using Ranges = std::map<uintptr_t, size_t>;  // start -> size
  using Sizes = std::set<std::pair<size_t, uintptr_t>>;

  std::optional<Allocation> find_locked(uintptr_t address) const OPENREG_REQUIRES(mutex_);
  void erase_free(Ranges::iterator range) OPENREG_REQUIRES(mutex_);
  void discard_pages(uintptr_t begin, uintptr_t end);
  void clear(uintptr_t begin, uintptr_t end, const Ranges::value_type& free_range);

  const uintptr_t base_;
  const ptrdiff_t kernel_offset_;
  const size_t capacity_;

  mutable Mutex mutex_;
  Ranges live_ OPENREG_GUARDED_BY(mutex_);           // size as requested
  Ranges free_ OPENREG_GUARDED_BY(mutex_);           // never two that touch
  Sizes free_by_size_ OPENREG_GUARDED_BY(mutex_);    // the same ranges, smallest first
  size_t free_size_ OPENREG_GUARDED_BY(mutex_) = 0;  // mapped memory included
  ReservedAddresses reserved_ OPENREG_GUARDED_BY(mutex_);
};

// Makes the arena of a device known, for as long as the process lives.
void add_arena(int device, Arena& arena);

// The arena of a device, null if there is none. Async-signal-safe.
Arena* arena_of(int device);

}  // namespace openreg
