// Vector clocks of streams.
//
// A stream has a number, and counts its launches. An epoch is a stream and a count, and so
// identifies a launch. The clock of a stream contains, for each stream, the last launch that
// precedes the stream's next work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace c10::openreg {

using StreamNumber = uint32_t;
using LaunchCount = uint64_t;

// Not thread-safe.
class Clock {
 public:
  LaunchCount of(StreamNumber stream) const {
    return stream < counts_.size() ? counts_[stream] : 0;
  }

  void raise(StreamNumber stream, LaunchCount count) {
    if (stream >= counts_.size()) {
      counts_.resize(stream + 1);
    }
    counts_[stream] = std::max(counts_[stream], count);
  }

  void join(const Clock& other) {
    counts_.resize(std::max(counts_.size(), other.counts_.size()));
    for (size_t i = 0; i < other.counts_.size(); ++i) {
      counts_[i] = std::max(counts_[i], other.counts_[i]);
    }
  }

  // The number of streams with an entry.
  size_t size() const { return counts_.size(); }

 private:
  std::vector<LaunchCount> counts_;  // streams beyond the end: 0
};

}  // namespace c10::openreg
