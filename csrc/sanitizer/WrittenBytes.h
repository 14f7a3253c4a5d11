// Which bytes of an allocation have been written.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "csrc/sanitizer/ByteRuns.h"

namespace c10::openreg {

// Note [Written bytes]
// A kernel that reads what nobody wrote is a mistake only if that is sure, so whatever is not known
// exactly counts as written: what lies between the runs of a tensor that has too many of them, and
// everything once there are too many gaps.
class WrittenBytes {
 public:
  static constexpr size_t kMaxRanges = 4096;

  // Of an allocation of which nothing has been written.
  WrittenBytes(uintptr_t address, size_t size) : begin_(address), end_(address + size) {}

  // Returns whether it took more than was written.
  bool add(const ByteRuns& runs);

  // Whether all bytes have been written.
  bool isWhole() const { return is_whole_; }

  // Whether one of the bytes has not been written. If so, and `first` is not null, it gets the
  // first one of those that were looked for.
  Overlap lacks(const ByteRuns& runs, uintptr_t* first) const;

  // What has been written, from begin to end, unless that is all.
  const std::map<uintptr_t, uintptr_t>& ranges() const { return ranges_; }

 private:
  void add(uintptr_t begin, uintptr_t end);

  // Whether a byte of the range has not been written; `first` as above.
  bool lacks(uintptr_t begin, uintptr_t end, uintptr_t* first) const;

  uintptr_t begin_;
  uintptr_t end_;
  bool is_whole_ = false;
  std::map<uintptr_t, uintptr_t> ranges_{};  // from begin to end; none touches another
};

}  // namespace c10::openreg
