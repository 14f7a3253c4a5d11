// The last accesses to a piece of memory.
//
// Not thread-safe.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "csrc/sanitizer/ByteRuns.h"
#include "csrc/sanitizer/Clock.h"
#include "csrc/sanitizer/Stack.h"

namespace c10::openreg {

// A launch, which its accesses share.
struct Work {
  uint64_t serial = 0;  // later launches, on any stream, have higher ones
  const char* kernel = "";
  LaunchCount count = 0;
  StreamNumber stream = 0;
  Stack stack{};
  std::unique_ptr<const Stack> captured{};  // of a replay: where the kernel was captured
};

// Sizes of a tensor. All tensors of the same sizes share them, until the process ends; those beyond
// a number that no program should reach have none.
using Sizes = const std::vector<int64_t>*;
Sizes shareSizes(IntArrayRef sizes);

// What a launch does with a tensor.
struct Access {
  std::shared_ptr<const Work> work{};
  ByteRuns runs{};
  const char* argument = nullptr;
  Sizes sizes = nullptr;
  int16_t operand = 0;
  ScalarType dtype = ScalarType::Undefined;
  bool is_write = false;
  bool is_allocation = false;  // stands for the owner's earlier use of memory that is new
  bool is_host_memory = false;
  mutable bool is_watched = false;  // there is, or has been, a HostWatch of it
};

// What the heap takes for a block of so many bytes.
size_t heapSize(size_t nbytes);

// Note [Many accesses to one allocation]
// Most memory has a few accesses, which are looked at one after the other. Where there are more
// than kMaxListed, as in a buffer that is written piece by piece, they are sorted by where they
// begin, in one list for each magnitude of their length: those near some bytes are then found
// without a look at the others.
class AccessSet {
 public:
  static constexpr size_t kMaxListed = 16;
  static constexpr size_t kMaxAccesses = 4096;

  explicit AccessSet(size_t max_accesses = kMaxAccesses) : max_accesses_(max_accesses) {}

  size_t size() const { return sorted_ == nullptr ? listed_.size() : sorted_count_; }

  // Returns whether room had to be made, so that the older half has been forgotten.
  bool add(Access access);

  void clear() {
    listed_.clear();
    sorted_.reset();
  }

  // The bytes on the heap, without the launches.
  size_t memory() const;

  template <typename Visit>
  void forEach(const Visit& visit) const {
    for (const Access& access : listed_) {
      visit(access);
    }
    if (sorted_ != nullptr) {
      for (const auto& [magnitude, row] : *sorted_) {
        for (const Access& access : row) {
          visit(access);
        }
      }
    }
  }

  // All whose first to last byte meet those of `runs`, and perhaps others. Valid until the next
  // change.
  using Near = c10::SmallVector<const Access*, kMaxListed>;
  Near near(const ByteRuns& runs) const;

  // Drops those of them for which `is_dropped` says so.
  template <typename Predicate>
  void eraseNear(const ByteRuns& runs, const Predicate& is_dropped) {
    if (sorted_ == nullptr) {
      std::erase_if(listed_, is_dropped);
      return;
    }
    for (auto& [magnitude, row] : *sorted_) {
      for (auto one = row.upper_bound(firstBegin(magnitude, runs));
           one != row.end() && one->runs.begin() < runs.end();) {
        if (is_dropped(*one)) {
          one = row.erase(one);
          --sorted_count_;
        } else {
          ++one;
        }
      }
    }
  }

 private:
  struct ByFirstByte {
    using is_transparent = void;
    bool operator()(const Access& a, const Access& b) const {
      return a.runs.begin() < b.runs.begin();
    }
    bool operator()(const Access& a, uintptr_t b) const { return a.runs.begin() < b; }
    bool operator()(uintptr_t a, const Access& b) const { return a < b.runs.begin(); }
  };
  using Row = std::multiset<Access, ByFirstByte>;
  using Rows = std::map<int, Row>;  // by the magnitude of the length

  // An access of this magnitude that begins here, or before, ends before `runs`.
  static uintptr_t firstBegin(int magnitude, const ByteRuns& runs) {
    const auto length = magnitude >= 63 ? ~uintptr_t(0) : uintptr_t(2) << magnitude;
    return runs.begin() > length ? runs.begin() - length : 0;
  }

  void sort(Access access);
  void forgetOlderHalf();

  size_t max_accesses_;
  std::vector<Access> listed_;  // empty once they are sorted
  std::unique_ptr<Rows> sorted_;
  size_t sorted_count_ = 0;
};

}  // namespace c10::openreg
