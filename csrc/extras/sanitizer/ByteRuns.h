// The bytes that an access to a tensor covers: runs of bytes at regular distances.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// The result of a check that is abandoned if it takes too long.
enum class Overlap : uint8_t { No, Yes, Undecided };

class OPENREG_EXPORT ByteRuns {
 public:
  // No bytes.
  ByteRuns() = default;

  // One run.
  ByteRuns(uintptr_t begin, size_t nbytes) : begin_(begin), end_(begin + nbytes), run_(nbytes) {}

  // The bytes of a strided tensor whose first element is at `begin`. Strides are in elements.
  ByteRuns(uintptr_t begin, IntArrayRef sizes, IntArrayRef strides, size_t itemsize);

  bool isEmpty() const { return begin_ == end_; }

  // Whether it is one run.
  bool isDense() const { return steps_.all().empty(); }

  // The first byte, and the end of the last one.
  uintptr_t begin() const { return begin_; }
  uintptr_t end() const { return end_; }

  // The number of bytes of all runs; bytes in several runs are counted several times.
  size_t byteCount() const { return runCount() * run_; }

  // Whether both have a byte in common. Undecided if this would need more than kMaxRuns runs of
  // either.
  Overlap overlap(const ByteRuns& other) const;

  // Whether a run contains the byte. Async-signal-safe.
  bool contains(uintptr_t address) const;

  // Whether all bytes of the other are included. May return false where an answer would need all
  // runs.
  bool covers(const ByteRuns& other) const;

  // Calls `visit` with begin and end of each run, in order. Returns false, without a call, if there
  // are more than kMaxRuns.
  template <typename Visit>
  bool forEachRun(const Visit& visit) const {
    if (isEmpty()) {
      return true;
    }
    if (runCount() > kMaxRuns) {
      return false;
    }
    for (const uintptr_t begin : begins()) {
      visit(begin, begin + run_);
    }
    return true;
  }

  // Heap memory in bytes.
  size_t memory() const { return steps_.memory(); }

  bool operator==(const ByteRuns& other) const = default;

  // An arbitrary total order.
  auto operator<=>(const ByteRuns& other) const = default;

  static constexpr size_t kMaxRuns = 4096;

 private:
  struct Step {
    size_t count;
    size_t stride;  // in bytes
    auto operator<=>(const Step&) const = default;
  };

  // The steps of a tensor; most have none. The size of a pointer, because there are many objects.
  class Steps {
   public:
    Steps() = default;
    explicit Steps(ArrayRef<Step> steps)
        : some_(steps.empty() ? nullptr : std::make_unique<std::vector<Step>>(steps.vec())) {}
    ~Steps() = default;
    Steps(const Steps& other) : Steps(other.all()) {}
    Steps(Steps&&) noexcept = default;
    Steps& operator=(const Steps& other) { return *this = Steps(other); }
    Steps& operator=(Steps&&) noexcept = default;

    ArrayRef<Step> all() const { return some_ == nullptr ? ArrayRef<Step>() : *some_; }
    size_t memory() const {
      return some_ == nullptr ? 0 : sizeof(*some_) + some_->capacity() * sizeof(Step);
    }

    bool operator==(const Steps& other) const { return all() == other.all(); }
    std::strong_ordering operator<=>(const Steps& other) const {
      return std::lexicographical_compare_three_way(all().begin(), all().end(), other.all().begin(),
                                                    other.all().end());
    }

   private:
    std::unique_ptr<const std::vector<Step>> some_{};
  };

  bool containsOffset(size_t offset, size_t step_count) const;
  using Begins = c10::SmallVector<uintptr_t, 16>;

  size_t runCount() const;
  Begins begins() const;

  uintptr_t begin_ = 0;
  uintptr_t end_ = 0;
  size_t run_ = 0;  // bytes of a run
  Steps steps_{};   // the smallest stride first; none has a count of 1
};

}  // namespace c10::openreg
