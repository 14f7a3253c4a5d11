// All that the sanitizer knows: what has been done to which memory, and who has waited for whom.
//
// Not thread-safe: Sanitizer.cpp has the lock.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/sanitizer/AccessSet.h"
#include "csrc/sanitizer/ByteRuns.h"
#include "csrc/sanitizer/Clock.h"
#include "csrc/sanitizer/Sanitizer.h"
#include "csrc/sanitizer/Shadow.h"
#include "csrc/sanitizer/Stack.h"
#include "csrc/sanitizer/Touch.h"
#include "csrc/sanitizer/Universe.h"
#include "csrc/sanitizer/WrittenBytes.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// Where something happens: a stream, in the universe that runs or in a capture. Valid until the
// lock is given back.
struct Place {
  Universe& universe;
  StreamNumber stream;
  uint64_t id;       // of the capture, or 0
  Capture* capture;  // or null
};

// Work that is about to be done.
struct Launch {
  Place place;
  const char* kernel;
  Stack stack;
  uint64_t replayed = 0;  // the capture of the graph that it replays, or 0
};

struct RecordedEvent {
  std::shared_ptr<const Clock> clock;
  uint64_t capture;  // that it was recorded in, or 0
};

class State {
 public:
  SanitizerOptions options{};
  SanitizerCounts counts{};
  std::map<std::string, uint64_t> not_seen{};
  Shadow shadow{};
  Universe live{};  // of what runs
  std::unordered_map<uint64_t, Capture> captures{};
  std::unordered_map<const void*, RecordedEvent> events{};

  // Forgets what happened. The options and counts stay.
  void forget();

  // --- Streams

  StreamNumber numberOf(const OpenRegStream& stream);
  const std::vector<Stream>& streams() const { return streams_; }  // by their numbers
  Place placeOf(const OpenRegStream& stream, uint64_t capture);

  // --- Memory

  // Finds the allocations of those that have none yet.
  void resolve(std::vector<Touch>& touches);

  // What has been done to the allocation, as far as it concerns work at the place. Graphs that
  // share a pool share its memory: what their replays do to it is kept by address.
  AccessSet& accessesOf(const Place& place, Allocation& allocation);

  // What has been written of the allocation; of another one than the capture's own, by the capture.
  std::unique_ptr<WrittenBytes>& writtenOf(const Place& place, Allocation& allocation);
  void markWritten(std::unique_ptr<WrittenBytes>& written, const ByteRuns& runs);

  // Of bytes that have been copied as they were.
  void moveWritten(uintptr_t to, uintptr_t from, size_t nbytes);

  // Nothing is known any more of what has been written.
  void giveUpWritten();

  void addAllocation(const Launch& by, const void* address, size_t size, MempoolId_t pool);

  // Of memory that has been freed: what its owner is not ordered behind and has not been told of.
  // See Note [Hazards].
  std::vector<Hazard> hazardsOf(const Place& place, const std::shared_ptr<Allocation>& allocation);
  void addHazards(const Place& place, MempoolId_t pool, std::vector<Hazard> hazards);

  // --- Work

  // Remembers it.
  void commit(const Launch& launch, std::vector<Touch>& touches);

  void forgetGraph(uint64_t id);

  // Computes those that are of now.
  SanitizerCounts countNow();

 private:
  static constexpr size_t kMaxHazards = 4096;  // of a stream and pool
  static constexpr size_t kMaxPoolAccesses = size_t(1) << 16;

  void keepForReplay(const Place& place, const Touch& touch);
  void endReplay(const Launch& launch, const std::vector<Touch>& touches);

  std::vector<Stream> streams_{};
  // By the handle: an external stream can be another name of the same one.
  std::unordered_map<orStream_t, StreamNumber> numbers_{};
  std::map<MempoolId_t, AccessSet> pools_{};  // of graphs
  uint64_t last_launch_ = 0;
};

}  // namespace c10::openreg
