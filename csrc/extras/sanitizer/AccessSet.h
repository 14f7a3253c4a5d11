// The recent accesses to an allocation.
//
// Not thread-safe.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "csrc/core/Stack.h"
#include "csrc/extras/sanitizer/ByteRuns.h"
#include "csrc/extras/sanitizer/Clock.h"

namespace c10::openreg {

// Who of a kernel made an access.
struct ProgramPlace {
  std::array<uint32_t, 3> program;
  const char* place;  // a line of the kernel's source and its callers; see TracedKernel
  bool is_atomic;
};

// What few launches have.
struct WorkDetails {
  std::unique_ptr<const Stack> captured{};  // of a replay: where the kernel was captured
  std::unique_ptr<const Clock> clock{};     // of its stream; only where State::keeps_clocks says so
  mutable std::vector<ProgramPlace> programs{};  // by which accesses refer to them, from 1 on
};

// A launch, shared by its accesses.
struct Work {
  uint64_t serial = 0;  // increases with each launch, on all streams
  const char* kernel = "";
  LaunchCount count = 0;
  StreamNumber stream = 0;
  Stack stack{};
  std::unique_ptr<const WorkDetails> details{};

  const Stack* captured() const { return details == nullptr ? nullptr : details->captured.get(); }
  const Clock* clock() const { return details == nullptr ? nullptr : details->clock.get(); }
};

// Sizes of a tensor. All tensors with the same sizes share one object, which is never freed. Their
// number is limited; tensors with further sizes have none.
using Sizes = const std::vector<int64_t>*;
Sizes shareSizes(IntArrayRef sizes);

// An access of a launch to a tensor.
struct Access {
  std::shared_ptr<const Work> work{};
  ByteRuns runs{};
  const char* argument = nullptr;  // its name, if known
  Sizes sizes = nullptr;
  int16_t operand = 0;  // its index among the read, or the written operands
  ScalarType dtype = ScalarType::Undefined;
  bool is_write : 1 = false;
  bool is_allocation : 1 = false;  // stands for the owner's earlier use of new memory
  bool is_host_memory : 1 = false;
  mutable bool is_watched : 1 = false;  // it has, or had, a HostWatch
  uint32_t program_number = 0;          // of WorkDetails; 0: the kernel as a whole

  const ProgramPlace* program() const {
    return program_number == 0 ? nullptr : &work->details->programs[program_number - 1];
  }
};

// The size of the heap block for an allocation of `nbytes`.
size_t heapSize(size_t nbytes);

// Note [Many accesses to one allocation]
// Most allocations have a few accesses, which are checked one after the other. If there are more
// than kMaxListed, as in a buffer that is written in parts, they are sorted by their start, in one
// list for each magnitude of their length. Then accesses near given bytes are found without
// visiting all others.
class AccessSet {
 public:
  static constexpr size_t kMaxListed = 16;
  static constexpr size_t kMaxAccesses = 4096;

  explicit AccessSet(size_t max_accesses = kMaxAccesses) : max_accesses_(max_accesses) {}

  size_t size() const { return sorted_ == nullptr ? listed_.size() : sorted_count_; }

  // Returns true if the set was full and the older half was dropped.
  bool add(Access access);

  // Heap memory in bytes, without the launches.
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

  // The accesses whose range of bytes intersects that of `runs`, and possibly others. Valid until
  // the next change.
  using Near = c10::SmallVector<const Access*, kMaxListed>;
  Near near(const ByteRuns& runs) const;

  // Drops those accesses for which `is_dropped` returns true.
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

  // Accesses of this magnitude that begin before the result end before `runs`.
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
