// Reserved addresses of one device: ranges that have memory only where it is mapped.
//
// Not thread-safe: the arena has the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace openreg {

struct Allocation {
  uintptr_t address;
  size_t size;  // as requested
};

class ReservedAddresses {
 public:
  using Ranges = std::map<uintptr_t, size_t>;  // start -> size

  // Has the addresses from `begin` to `end`.
  ReservedAddresses(uintptr_t begin, uintptr_t end);

  // Returns the lowest `size` > 0 bytes of addresses that are not reserved, 0 if there are none.
  uintptr_t reserve(size_t size);

  // Ends a reservation that starts at the address. False if there is none, or if it has memory.
  bool release(uintptr_t address);

  // Whether the range lies in one reservation, and all of it is mapped or none.
  bool is_mapped(uintptr_t address, size_t size) const;
  bool is_unmapped(uintptr_t address, size_t size) const;

  // Of a range for which is_unmapped().
  void map(uintptr_t address, size_t size);

  // Of a range for which is_mapped(). `spare` has one node, which may be taken: nothing throws.
  void unmap(uintptr_t address, size_t size, Ranges& spare);

  // The mapped range around the address.
  std::optional<Allocation> find(uintptr_t address) const;

  size_t mapped_size() const { return mapped_size_; }

  // Checks the bookkeeping: ranges are sorted and disjoint, mapped ones lie in reservations and do
  // not touch, and their sizes add up.
  bool is_valid() const;

 private:
  bool is_reserved(uintptr_t address, size_t size) const;

  const uintptr_t begin_;
  const uintptr_t end_;
  Ranges reserved_;
  Ranges mapped_;  // never two of one reservation that touch
  size_t mapped_size_ = 0;
};

}  // namespace openreg
