// What is known of memory: who allocated it, and its last accesses.
//
// Not thread-safe.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "csrc/sanitizer/ByteRuns.h"
#include "csrc/sanitizer/Clock.h"
#include "csrc/sanitizer/Stack.h"

namespace c10::openreg {

// A launch, which its accesses share.
struct Work {
  const char* kernel;
  StreamNumber stream;
  LaunchCount count;
  Stack stack;
  Stack captured;  // of a graph's kernel
};

// What a launch does with a tensor.
struct Access {
  std::shared_ptr<const Work> work{};
  ByteRuns runs{};
  bool is_write = false;
  bool is_allocation = false;  // stands for the owner's earlier use of memory that is new
  bool is_host_memory = false;
  bool is_watched = false;  // there is, or has been, a HostWatch of it
  const char* argument = nullptr;
  int operand = 0;
  ScalarType dtype = ScalarType::Undefined;
  c10::SmallVector<int64_t, 4> sizes{};
};

struct Allocation {
  uint64_t serial = 0;  // later allocations and frees have higher ones
  uintptr_t address = 0;
  size_t size = 0;
  std::optional<StreamNumber> owner{};  // unknown of memory from before the sanitizer
  MempoolId_t pool{0, 0};
  bool is_of_capture = false;  // it is a graph's own
  bool is_host_memory = false;
  Stack allocated{};
  std::vector<StreamNumber> used_on{};  // by record_stream
  std::vector<Access> accesses{};

  // Whether a new access to the same memory, that comes after an old one, makes that needless.
  static bool isReplaced(const Access& old, const Access& by) {
    const bool is_same_kind =
        by.is_write || (!old.is_write && !old.is_allocation && old.work->stream == by.work->stream);
    return is_same_kind && by.runs.covers(old.runs);
  }

  // Adds an access. Returns whether room had to be made, so that others have been forgotten.
  bool add(Access access) {
    const bool is_full = accesses.size() >= kMaxAccesses;
    if (is_full) {
      accesses.erase(accesses.begin(), accesses.begin() + kMaxAccesses / 2);
    }
    accesses.push_back(std::move(access));
    return is_full;
  }

  static constexpr size_t kMaxAccesses = 4096;
};

// All live allocations, by address.
class Shadow {
 public:
  // The allocation that the address is in. Null if it is in none.
  Allocation* find(uintptr_t address);

  // The same; memory that is in none becomes one, of unknown origin.
  Allocation& findOrAdd(uintptr_t address, size_t size);

  // Adds one in place of what was at its addresses.
  Allocation& add(uintptr_t address, size_t size);

  // Takes out the one that begins there.
  std::shared_ptr<Allocation> take(uintptr_t address);

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
  std::map<uintptr_t, std::shared_ptr<Allocation>> live_;
  uint64_t serial_ = 0;
};

}  // namespace c10::openreg
