// What is known of memory: who allocated it, and its last accesses.
//
// Not thread-safe.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "csrc/sanitizer/AccessSet.h"
#include "csrc/sanitizer/Clock.h"
#include "csrc/sanitizer/Stack.h"
#include "csrc/sanitizer/WrittenBytes.h"

namespace c10::openreg {

struct Allocation {
  uint64_t serial = 0;  // later allocations and frees have higher ones
  uintptr_t address = 0;
  size_t size = 0;
  std::optional<StreamNumber> owner{};  // unknown of memory from before the sanitizer
  MempoolId_t pool{0, 0};
  uint64_t capture = 0;  // the one that it was allocated in; it is the graph's own then
  bool is_host_memory = false;
  bool is_live = true;
  bool is_graph_input = false;  // a replay needs it, and it is not the graph's own
  Stack allocated{};
  Stack freed{};                        // of such an input
  std::vector<StreamNumber> used_on{};  // by record_stream
  AccessSet accesses{};
  std::unique_ptr<WrittenBytes> written{};  // null: all of it, or nobody asks

  // Whether a new access to the same memory, that comes after an old one, makes that needless.
  static bool isReplaced(const Access& old, const Access& by) {
    const bool is_same_kind =
        by.is_write || (!old.is_write && !old.is_allocation && old.work->stream == by.work->stream);
    return is_same_kind && by.runs.covers(old.runs);
  }
};

// All live allocations, by address.
class Shadow {
 public:
  using AllocationPtr = std::shared_ptr<Allocation>;

  // The allocation that the address is in. Null if it is in none.
  AllocationPtr find(uintptr_t address) const;

  // The same; memory that is in none becomes one, of unknown origin.
  const AllocationPtr& findOrAdd(uintptr_t address, size_t size);

  // Adds one in place of what was at its addresses.
  const AllocationPtr& add(uintptr_t address, size_t size);

  // Takes out the one that begins there.
  AllocationPtr take(uintptr_t address);

  // Of the latest allocation or free.
  uint64_t serial() const { return serial_; }

  template <typename Visit>
  void forEach(const Visit& visit) const {
    for (const auto& [address, allocation] : live_) {
      visit(*allocation);
    }
  }

  void clear() { live_.clear(); }

 private:
  using Allocations = std::map<uintptr_t, AllocationPtr>;

  Allocations::const_iterator at(uintptr_t address) const;

  Allocations live_;
  uint64_t serial_ = 0;
};

}  // namespace c10::openreg
