// The happens-before relation of streams, or of the streams of one capture.
//
// Note [Captures]
// Captured work does not run, so it is not ordered with work that does: each capture has a
// happens-before relation of its own, with clocks that start with it and without the host. Two
// kernels of a capture that it does not order are a race in each replay. A replay counts as one
// piece of work outside of captures, with all accesses of its kernels.
//
// Memory: each stream has a clock with a count for each other one, and may have waited for each, so
// a universe takes memory in proportion to the square of its streams: 900 MiB for 5,000. The pool
// of torch's streams has few; a program that makes its own without end has to use them again.
//
// Not thread-safe.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/Clock.h"
#include "csrc/extras/sanitizer/Shadow.h"
#include "csrc/extras/sanitizer/Stack.h"

namespace c10::openreg {

// A possible use of freed memory; see Note [Hazards].
struct Hazard {
  uint64_t serial;  // of the free
  Access access;
  std::shared_ptr<const Allocation> allocation;
  Stack freed;
};

using PoolKey = std::pair<StreamNumber, MempoolId_t>;

struct HappensBefore {
  std::map<PoolKey, std::vector<Hazard>> hazards;
  // Where the first stream last waited for work of the second.
  std::map<std::pair<StreamNumber, StreamNumber>, Stack> waits;
  Clock host;

  Clock& clockOf(StreamNumber stream) { return stateOf(stream).clock; }

  void hostAwaits(const Clock& clock) {
    host.join(clock);
    ++host_version_;
  }

  // Before a launch on the stream: merges the host's clock into the stream's.
  void takeOverHost(StreamNumber stream) {
    StreamState& state = stateOf(stream);
    if (state.host_version != host_version_) {
      state.clock.join(host);
      state.host_version = host_version_;
    }
  }

  // `clock` is not that of a stream of this object.
  void await(StreamNumber stream, const Clock& clock, const Stack& stack) {
    for (StreamNumber other = 0; other < clock.size(); ++other) {
      if (other != stream && clock.of(other) > 0) {
        waits[{stream, other}] = stack;
      }
    }
    clockOf(stream).join(clock);
  }

  // Whether it is ordered before the next work of the stream.
  bool isOrdered(const Access& access, StreamNumber stream) {
    const Work& work = *access.work;
    return work.stream == stream || clockOf(stream).of(work.stream) >= work.count ||
           isKnownToHost(access);
  }

  bool isKnownToHost(const Access& access) const {
    return host.of(access.work->stream) >= access.work->count;
  }

 private:
  struct StreamState {
    Clock clock;
    uint64_t host_version = 0;  // the version of the host's clock that was merged
  };

  StreamState& stateOf(StreamNumber stream) {
    if (stream >= states_.size()) {
      states_.resize(stream + 1);
    }
    return states_[stream];
  }

  std::deque<StreamState> states_;  // by the stream's number; references stay valid
  uint64_t host_version_ = 0;
};

// A graph, from the beginning of its capture.
struct Capture {
  // An access of a kernel. Accesses to the same bytes are merged.
  struct Kept {
    Access access;
    std::shared_ptr<Allocation> allocation;
    bool is_read = false;  // the replay needs contents from outside
  };

  // The capture's accesses to an allocation, during the capture.
  struct Touched {
    AccessSet accesses;
    std::unique_ptr<WrittenBytes> written;  // of its own ones; null if not tracked
  };

  StreamNumber origin = 0;
  Stack begun{};
  bool is_under_way = false;

  HappensBefore happens_before;
  std::unordered_map<uint64_t, Touched> touched;  // by the allocation's serial
  std::map<StreamNumber, std::shared_ptr<const Work>> last_work;

  std::map<std::pair<ByteRuns, bool>, Kept> kept;  // bool: it is written
  Clock last_replay;                               // the next one waits for it, on every stream
};

}  // namespace c10::openreg
