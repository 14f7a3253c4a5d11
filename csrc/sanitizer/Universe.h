// What is ordered among each other: the streams, or the streams of one capture.
//
// Note [Captures]
// Work that is captured does not run, so nothing orders it before or after what does: a capture is
// a universe of its own, with clocks that start with it and know no host. Two kernels of it that
// nothing in the capture orders are a race on each replay. A replay is one piece of work in the
// universe that runs, with all accesses of its kernels.
//
// Memory: each stream has a clock with a count for each other one, and may have waited for each, so
// a universe takes memory in proportion to the square of its streams: 900 MiB for 5,000. The pool of
// torch's streams has few; a program that makes its own without end has to use them again.
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

#include "csrc/sanitizer/AccessSet.h"
#include "csrc/sanitizer/Clock.h"
#include "csrc/sanitizer/Shadow.h"
#include "csrc/sanitizer/Stack.h"

namespace c10::openreg {

// What freed memory may still be used for; see Note [Hazards].
struct Hazard {
  uint64_t serial;  // of the free
  Access access;
  std::shared_ptr<const Allocation> allocation;
  Stack freed;
};

using PoolKey = std::pair<StreamNumber, MempoolId_t>;

struct Universe {
  std::map<PoolKey, std::vector<Hazard>> hazards;
  // Where the first stream last waited for work of the second.
  std::map<std::pair<StreamNumber, StreamNumber>, Stack> waits;
  Clock host;

  Clock& clockOf(StreamNumber stream) { return stateOf(stream).clock; }

  void hostAwaits(const Clock& clock) {
    host.join(clock);
    ++host_version_;
  }

  // Before a launch on the stream: what the host knows, the stream will know.
  void takeOverHost(StreamNumber stream) {
    StreamState& state = stateOf(stream);
    if (state.host_version != host_version_) {
      state.clock.join(host);
      state.host_version = host_version_;
    }
  }

  // `clock` is of no stream of this universe.
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
    uint64_t host_version = 0;  // the version of the host's clock that it knows
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
  // Of a kernel. Two with the same bytes are one.
  struct Kept {
    Access access;
    std::shared_ptr<Allocation> allocation;
    bool is_read = false;  // and the replay needs contents from outside
  };

  // What the capture does with an allocation, while it lasts.
  struct Touched {
    AccessSet accesses;
    std::unique_ptr<WrittenBytes> written;  // of its own ones; null if that is not followed
  };

  StreamNumber origin = 0;
  Stack begun{};
  bool is_under_way = false;

  Universe universe;
  std::unordered_map<uint64_t, Touched> touched;  // by the allocation's serial
  std::map<StreamNumber, std::shared_ptr<const Work>> last_work;

  std::map<std::pair<ByteRuns, bool>, Kept> kept;  // bool: it is written
  Clock last_replay;                               // the next one waits for it, on whatever stream
};

}  // namespace c10::openreg
