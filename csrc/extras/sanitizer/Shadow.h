// The state of memory: its allocation, and the recent accesses to it.
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

#include "csrc/core/Stack.h"
#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/Clock.h"
#include "csrc/extras/sanitizer/WrittenBytes.h"

namespace c10::openreg {

struct Allocation {
  uint64_t serial = 0;  // increases with each allocation and free
  uintptr_t address = 0;
  size_t size = 0;
  std::optional<StreamNumber> owner{};  // unknown if allocated before the sanitizer was on
  MempoolId_t pool{0, 0};
  uint64_t capture = 0;  // the capture that allocated it; it then belongs to the graph
  bool is_host_memory = false;
  bool is_live = true;
  bool is_graph_input = false;  // a replay needs it, and it does not belong to the graph
  Stack allocated{};
  Stack freed{};                        // for such an input
  std::vector<StreamNumber> used_on{};  // by record_stream
  AccessSet accesses{};
  std::unique_ptr<WrittenBytes> written{};  // null: all of it, or not tracked
  // See Note [Written by programs].
  std::unique_ptr<WrittenBytes> certain{};
  int pending_traces = 0;

  void giveUpWritten() {
    written.reset();
    certain.reset();
  }

  // Whether a new access to the same memory, after an old one, makes the old one redundant.
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

  // The allocation that contains the address; null if there is none.
  AllocationPtr find(uintptr_t address) const;

  // The same; unknown memory is added as an allocation of unknown origin.
  const AllocationPtr& findOrAdd(uintptr_t address, size_t size);

  // Adds an allocation, and removes those at its addresses.
  const AllocationPtr& add(uintptr_t address, size_t size);

  // Removes the allocation that begins at the address.
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
