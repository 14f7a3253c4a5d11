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

#include "csrc/core/Stack.h"
#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/Clock.h"
#include "csrc/extras/sanitizer/Shadow.h"

namespace c10::openreg {

// A possible use of freed memory; see Note [Hazards].
struct Hazard {
  uint64_t serial;  // of the free
  Access access;
  std::shared_ptr<const Allocation> allocation;
  Stack freed;
};

using PoolKey = std::pair<StreamNumber, MempoolId_t>;

// Where a stream or the host waited for another stream, which may have had no work yet.
struct Wait {
  Stack stack;
  uint64_t last_launch = 0;  // the serial of the last launch before it
};

struct HappensBefore {
  std::map<PoolKey, std::vector<Hazard>> hazards;
  // Where the first stream last waited for the second.
  std::map<std::pair<StreamNumber, StreamNumber>, Wait> waits;
  // Where the host last waited for the stream.
  std::map<StreamNumber, Wait> host_waits;
  Clock host;

  Clock& clockOf(StreamNumber stream) { return stateOf(stream).clock; }

  void hostAwaits(const Clock& clock) {
    host.join(clock);
    ++host_version_;
  }

  // Notes a wait of the host for `other`, whose clock is `clock`.
  void noteHostWait(StreamNumber other, const Clock& clock, const Wait& wait) {
    forEachAwaited(other, clock, [&](StreamNumber awaited) { host_waits[awaited] = wait; });
  }

  // Before a launch on the stream: merges the host's clock into the stream's.
  void takeOverHost(StreamNumber stream) {
    StreamState& state = stateOf(stream);
    if (state.host_version != host_version_) {
      state.clock.join(host);
      state.host_version = host_version_;
    }
  }

  // Orders the stream after `other`, or a point of it, whose clock is `clock`: not that of a stream
  // of this object.
  void await(StreamNumber stream, StreamNumber other, const Clock& clock, const Wait& wait) {
    forEachAwaited(other, clock, [&](StreamNumber awaited) {
      if (awaited != stream) {
        waits[{stream, awaited}] = wait;
      }
    });
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

  // The stream itself, and those that it has waited for.
  template <typename Visit>
  static void forEachAwaited(StreamNumber stream, const Clock& clock, const Visit& visit) {
    visit(stream);
    for (StreamNumber other = 0; other < clock.size(); ++other) {
      if (other != stream && clock.of(other) > 0) {
        visit(other);
      }
    }
  }

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
    bool is_read = false;     // the replay needs contents from outside
    bool is_unknown = false;  // as of MemoryAccess
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
