// The bytes of an allocation that have been written.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "csrc/extras/sanitizer/ByteRuns.h"

namespace c10::openreg {

// Note [Written bytes]
// A read of uninitialized memory is reported only if it is certain. So bytes count as written if
// this is not known exactly: those between the runs of a tensor with too many runs, and the whole
// allocation once it has too many gaps.
class WrittenBytes {
 public:
  static constexpr size_t kMaxRanges = 4096;

  // For a new allocation, of which nothing has been written.
  WrittenBytes(uintptr_t address, size_t size) : begin_(address), end_(address + size) {}

  // Returns true if it added more bytes than were written.
  bool add(const ByteRuns& runs);

  // Whether all bytes have been written.
  bool isWhole() const { return is_whole_; }

  // Whether one of the bytes has not been written. If so, and if `first` is not null, it gets the
  // first such byte.
  Overlap lacks(const ByteRuns& runs, uintptr_t* first) const;

  // The written ranges, from begin to end, unless everything is written.
  const std::map<uintptr_t, uintptr_t>& ranges() const { return ranges_; }

 private:
  void add(uintptr_t begin, uintptr_t end);

  // Whether a byte of the range has not been written; `first` as above.
  bool lacks(uintptr_t begin, uintptr_t end, uintptr_t* first) const;

  uintptr_t begin_;
  uintptr_t end_;
  bool is_whole_ = false;
  std::map<uintptr_t, uintptr_t> ranges_{};  // from begin to end; none are adjacent
};

}  // namespace c10::openreg
