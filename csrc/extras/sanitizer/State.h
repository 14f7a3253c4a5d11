// The state of the sanitizer: the accesses to memory, and the order of streams.
//
// Not thread-safe: Sanitizer.cpp has the lock.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/core/Stack.h"
#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/ByteRuns.h"
#include "csrc/extras/sanitizer/Clock.h"
#include "csrc/extras/sanitizer/HappensBefore.h"
#include "csrc/extras/sanitizer/MemoryAccess.h"
#include "csrc/extras/sanitizer/Sanitizer.h"
#include "csrc/extras/sanitizer/Shadow.h"
#include "csrc/extras/sanitizer/WrittenBytes.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// Where work is launched: a stream, outside of captures or in one. Valid until the lock is
// released.
struct LaunchPlace {
  HappensBefore& happens_before;
  StreamNumber stream;
  uint64_t id;       // of the capture, or 0
  Capture* capture;  // or null
};

// Work that is about to be launched.
struct Launch {
  LaunchPlace place;
  const char* kernel;
  Stack stack;
  uint64_t replayed = 0;  // the capture of the graph that it replays, or 0
};

struct RecordedEvent {
  StreamNumber stream;
  Clock clock;
  uint64_t capture;  // that contains the record, or 0
};

class State {
 public:
  SanitizerOptions options{};
  SanitizerCounts counts{};
  Shadow shadow{};
  HappensBefore live{};  // outside of captures
  // Where the host last waited for a device: for all its streams, also those without a number yet.
  std::map<DeviceIndex, Wait> device_waits{};
  std::unordered_map<uint64_t, Capture> captures{};
  std::unordered_map<const void*, RecordedEvent> events{};
  bool keeps_clocks = false;  // launches keep their streams' clocks, for comparisons to come

  // Discards everything except for the options and counts.
  void forget();

  // --- Streams

  StreamNumber numberOf(const OpenRegStream& stream);
  const std::vector<Stream>& streams() const { return streams_; }  // by their numbers
  LaunchPlace placeOf(const OpenRegStream& stream, uint64_t capture);

  // --- Memory

  // Sets the allocations of those that have none yet.
  void resolve(std::vector<MemoryAccess>& memory_accesses);

  // The accesses to the allocation that are relevant at the place. Graphs that share a pool share
  // its memory: accesses of their replays are stored by address.
  AccessSet& accessesOf(const LaunchPlace& place, Allocation& allocation);

  // The written bytes of the allocation. For memory from outside of a capture: those that the
  // capture has written.
  std::unique_ptr<WrittenBytes>& writtenOf(const LaunchPlace& place, Allocation& allocation);
  void markWritten(std::unique_ptr<WrittenBytes>& written, const ByteRuns& runs);

  // For bytes that were copied without being interpreted.
  void moveWritten(uintptr_t to, uintptr_t from, size_t nbytes);

  // Note [Written by programs]
  // What a traced kernel writes is known once it has run. Until then, all bytes of the tensors that
  // it may write count as written, and `certain` of the allocation has those that are so in any
  // case. Afterwards it takes the place of `written`.
  // beginTrace returns false for memory whose written bytes are not tracked.
  bool beginTrace(Allocation& allocation);
  void endTrace(Allocation& allocation, const std::vector<ByteRuns>& written, bool is_complete);

  // Marks all bytes as written.
  void giveUpWritten();

  void addAllocation(const Launch& by, const void* address, size_t size, MempoolId_t pool);

  // The uses of freed memory that its owner is not ordered after, and that were not announced. See
  // Note [Hazards].
  std::vector<Hazard> hazardsOf(const LaunchPlace& place,
                                const std::shared_ptr<Allocation>& allocation);
  void addHazards(const LaunchPlace& place, MempoolId_t pool, std::vector<Hazard> hazards);

  // --- Work

  // A wait that is made now.
  Wait waitOf(Stack stack) const { return {std::move(stack), last_launch_}; }

  // Records the work, and returns it.
  std::shared_ptr<const Work> commit(const Launch& launch,
                                     std::vector<MemoryAccess>& memory_accesses);

  void forgetGraph(uint64_t id);

  // Computes the counts that are marked "now".
  SanitizerCounts countNow();

 private:
  static constexpr size_t kMaxHazards = 4096;      // of a stream and pool
  static constexpr size_t kMaxAwaitingTrace = 64;  // of an allocation
  static constexpr size_t kMaxPoolAccesses = size_t(1) << 16;

  void keepForReplay(const LaunchPlace& place, const MemoryAccess& memory_access);
  void endReplay(const Launch& launch, const std::vector<MemoryAccess>& memory_accesses);

  std::vector<Stream> streams_{};
  // By handle, because an external stream can be another name of the same stream.
  std::unordered_map<orStream_t, StreamNumber> numbers_{};
  std::map<MempoolId_t, AccessSet> pools_{};  // of graphs
  uint64_t last_launch_ = 0;
};

}  // namespace c10::openreg
