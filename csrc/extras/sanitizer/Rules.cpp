#include "csrc/extras/sanitizer/Rules.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>

#include "csrc/extras/sanitizer/ByteRuns.h"
#include "csrc/extras/sanitizer/Clock.h"
#include "csrc/extras/sanitizer/WrittenBytes.h"

namespace c10::openreg {

namespace {

// Whether they certainly overlap.
bool doOverlap(State& state, const ByteRuns& runs, const ByteRuns& other) {
  const Overlap overlap = runs.overlap(other);
  state.counts.undecided += overlap == Overlap::Undecided ? 1 : 0;
  return overlap == Overlap::Yes;
}

bool isConflict(State& state, const LaunchPlace& place, const Access& earlier,
                const Access& later) {
  const bool is_looked_for =
      earlier.is_allocation ? state.options.finds_lifetimes : state.options.finds_races;
  return (earlier.is_write || later.is_write) && is_looked_for &&
         !place.happens_before.isOrdered(earlier, place.stream) &&
         doOverlap(state, earlier.runs, later.runs);
}

AccessReport describe(const State& state, const Launch& launch, const MemoryAccess& memory_access,
                      uintptr_t base) {
  const Work* const captured = memory_access.captured.get();
  return {memory_access.access,
          base,
          captured == nullptr ? launch.kernel : captured->kernel,
          state.streams()[launch.place.stream],
          launch.stack,
          captured == nullptr ? Stack() : captured->stack};
}

// Whether the wait was made after the work of the access was launched. An allocation has no launch
// of its own, but the serial of the one before.
bool isAfter(const Wait& wait, const Access& access) {
  return access.is_allocation ? wait.last_launch > access.work->serial
                              : wait.last_launch >= access.work->serial;
}

// The latest wait for the stream of earlier work: of the stream of the later work; or of the host,
// if it is made after the earlier work. A program has many older waits of the host that have
// nothing to do with this work.
std::optional<WaitReport> waitFor(const HappensBefore& happens_before, const Access& earlier,
                                  StreamNumber stream) {
  const auto& waits = happens_before.waits;
  const auto& host_waits = happens_before.host_waits;
  const auto own = waits.find({stream, earlier.work->stream});
  const auto hosts = host_waits.find(earlier.work->stream);
  const bool is_of_host =
      hosts != host_waits.end() && isAfter(hosts->second, earlier) &&
      (own == waits.end() || own->second.last_launch < hosts->second.last_launch);
  if (!is_of_host && own == waits.end()) {
    return std::nullopt;
  }
  const Wait& wait = is_of_host ? hosts->second : own->second;
  return WaitReport{wait.stack, is_of_host, isAfter(wait, earlier)};
}

Finding conflict(const State& state, const Launch& launch, const MemoryAccess& memory_access,
                 const Access& earlier, const Allocation& allocation) {
  Finding finding{earlier.is_allocation ? FindingKind::Lifetime : FindingKind::Race};
  finding.earlier = describe(state, earlier, allocation.address);
  finding.later = describe(state, launch, memory_access, allocation.address);
  finding.allocation = describe(state, allocation);
  finding.is_in_capture = launch.place.capture != nullptr;
  finding.waited = waitFor(launch.place.happens_before, earlier, launch.place.stream);
  return finding;
}

// --- Conflicts

// The latest conflicting access of each stream.
c10::SmallVector<const Access*, 4> conflictsOf(State& state, const LaunchPlace& place,
                                               const MemoryAccess& memory_access) {
  c10::SmallVector<const Access*, 4> conflicts;
  for (const Access* earlier :
       state.accessesOf(place, *memory_access.allocation).near(memory_access.access.runs)) {
    if (!isConflict(state, place, *earlier, memory_access.access)) {
      continue;
    }
    auto* const same = std::find_if(conflicts.begin(), conflicts.end(), [&](const Access* one) {
      return one->work->stream == earlier->work->stream;
    });
    if (same == conflicts.end()) {
      conflicts.push_back(earlier);
    } else if ((!earlier->is_allocation || (*same)->is_allocation) &&
               (*same)->work->serial <= earlier->work->serial) {
      *same = earlier;
    }
  }
  return conflicts;
}

void findConflicts(State& state, const Launch& launch, const MemoryAccess& memory_access,
                   std::vector<Finding>& findings) {
  for (const Access* earlier : conflictsOf(state, launch.place, memory_access)) {
    const bool is_known = std::any_of(findings.begin(), findings.end(), [&](const Finding& one) {
      return !one.allocation.freed.has_value() &&
             one.earlier.access.is_allocation == earlier->is_allocation &&
             one.earlier.stream == state.streams()[earlier->work->stream] &&
             one.earlier.kernel == earlier->work->kernel &&
             one.earlier.stack.here == earlier->work->stack.here;
    });
    if (!is_known) {
      findings.push_back(
          conflict(state, launch, memory_access, *earlier, *memory_access.allocation));
    }
  }
}

// --- Hazards

// Whether the work is the first one that the hazard can affect.
bool isOpen(const State& state, const LaunchPlace& place, const Hazard& hazard,
            const MemoryAccess& memory_access) {
  if (memory_access.allocation->serial <= hazard.serial ||
      place.happens_before.isOrdered(hazard.access, place.stream)) {
    return false;
  }
  return !state.options.is_lifetime_exact ||
         ((memory_access.access.is_write || hazard.access.is_write) &&
          hazard.access.runs.overlap(memory_access.access.runs) == Overlap::Yes);
}

// The hazards of the memory's owner and pool; null if there are none.
std::vector<Hazard>* hazardsNear(const LaunchPlace& place, const Allocation& allocation) {
  auto& all = place.happens_before.hazards;
  if (!allocation.owner.has_value() || all.empty()) {
    return nullptr;
  }
  const auto found = all.find({*allocation.owner, allocation.pool});
  return found == all.end() ? nullptr : &found->second;
}

void findHazards(const State& state, const Launch& launch, const MemoryAccess& memory_access,
                 std::vector<Finding>& findings) {
  const LaunchPlace& place = launch.place;
  const Allocation& allocation = *memory_access.allocation;
  std::vector<Hazard>* const hazards = hazardsNear(place, allocation);
  if (hazards == nullptr) {
    return;
  }
  std::erase_if(*hazards, [&](const Hazard& hazard) {
    return place.happens_before.isOrdered(hazard.access, *allocation.owner);
  });
  // The last use for each free and stream, which is the one to wait for.
  for (auto it = hazards->rbegin(); it != hazards->rend(); ++it) {
    const Hazard& hazard = *it;
    if (!isOpen(state, place, hazard, memory_access)) {
      continue;
    }
    const bool is_known = std::any_of(findings.begin(), findings.end(), [&](const Finding& one) {
      return one.allocation.freed.has_value() && one.allocation.freed->here == hazard.freed.here &&
             one.earlier.stream == state.streams()[hazard.access.work->stream];
    });
    if (is_known) {
      continue;
    }
    Finding finding = conflict(state, launch, memory_access, hazard.access, *hazard.allocation);
    finding.kind = FindingKind::Lifetime;
    finding.allocation.freed = hazard.freed;
    finding.reused = describe(state, allocation);
    finding.later.base = allocation.address;
    findings.push_back(std::move(finding));
  }
  if (hazards->empty()) {
    place.happens_before.hazards.erase({*allocation.owner, allocation.pool});
  }
}

// --- Uninitialized memory

// The access that would have written it in a replay of its graph; null if there is none.
const Access* writerOf(const State& state, const LaunchPlace& place,
                       const MemoryAccess& memory_access) {
  const auto graph = state.captures.find(memory_access.allocation->capture);
  if (place.capture != nullptr || graph == state.captures.end()) {
    return nullptr;
  }
  const Access* writer = nullptr;
  for (const auto& [key, kept] : graph->second.kept) {
    if (kept.access.is_write && kept.allocation == memory_access.allocation &&
        (writer == nullptr || writer->work->serial < kept.access.work->serial) &&
        kept.access.runs.overlap(memory_access.access.runs) == Overlap::Yes) {
      writer = &kept.access;
    }
  }
  return writer;
}

// Whether the access reads memory that was not written; `first` gets the first such byte. In a
// capture, memory from outside may be written before the replay.
bool isUnwrittenRead(State& state, const LaunchPlace& place, const MemoryAccess& memory_access,
                     uintptr_t* first) {
  Allocation& allocation = *memory_access.allocation;
  const bool is_of_graph = allocation.capture != 0 && place.capture == nullptr;
  if (!memory_access.is_read || (!is_of_graph && !state.options.finds_uninitialized) ||
      (place.capture != nullptr && allocation.capture != place.id)) {
    return false;
  }
  const auto& written = state.writtenOf(place, allocation);
  const Overlap lacks =
      written == nullptr ? Overlap::No : written->lacks(memory_access.access.runs, first);
  state.counts.undecided += lacks == Overlap::Undecided ? 1 : 0;
  return lacks == Overlap::Yes &&
         (state.options.finds_uninitialized || writerOf(state, place, memory_access) != nullptr);
}

void findUnwritten(State& state, const Launch& launch, const MemoryAccess& memory_access,
                   std::vector<Finding>& findings) {
  uintptr_t first = 0;
  if (!isUnwrittenRead(state, launch.place, memory_access, &first)) {
    return;
  }
  const Allocation& allocation = *memory_access.allocation;
  Finding finding{FindingKind::Uninitialized};
  finding.later = describe(state, launch, memory_access, allocation.address);
  finding.allocation = describe(state, allocation);
  finding.unwritten = static_cast<int64_t>(first - allocation.address);
  finding.is_in_capture = launch.place.capture != nullptr;
  if (const Access* writer = writerOf(state, launch.place, memory_access)) {
    finding.earlier = describe(state, *writer, allocation.address);
  } else {
    finding.earlier.access.is_allocation = true;
    finding.earlier.stream = finding.allocation.stream.value();
    finding.earlier.stack = allocation.allocated;
  }
  findings.push_back(std::move(finding));
}

}  // namespace

AllocationReport describe(const State& state, const Allocation& allocation) {
  AllocationReport report;
  report.size = allocation.size;
  if (allocation.owner.has_value()) {
    report.stream = state.streams()[*allocation.owner];
  }
  report.is_host_memory = allocation.is_host_memory;
  report.allocated = allocation.allocated;
  return report;
}

AccessReport describe(const State& state, const Access& access, uintptr_t base) {
  const Work& work = *access.work;
  return {access,      base,
          work.kernel, state.streams()[work.stream],
          work.stack,  work.captured() == nullptr ? Stack() : *work.captured()};
}

std::vector<Finding> findAll(State& state, const Launch& launch,
                             const std::vector<MemoryAccess>& memory_accesses) {
  std::vector<Finding> findings;
  for (const MemoryAccess& memory_access : memory_accesses) {
    findConflicts(state, launch, memory_access, findings);
    findHazards(state, launch, memory_access, findings);
    findUnwritten(state, launch, memory_access, findings);
  }
  return findings;
}

void takeAsOrdered(State& state, const Launch& launch,
                   const std::vector<MemoryAccess>& memory_accesses) {
  const LaunchPlace& place = launch.place;
  // Hazards first, because whether they are open depends on the order before this work.
  for (const MemoryAccess& memory_access : memory_accesses) {
    if (std::vector<Hazard>* const hazards = hazardsNear(place, *memory_access.allocation)) {
      std::erase_if(*hazards, [&](const Hazard& hazard) {
        return isOpen(state, place, hazard, memory_access);
      });
    }
    if (isUnwrittenRead(state, place, memory_access, nullptr)) {
      state.writtenOf(place, *memory_access.allocation).reset();
      memory_access.allocation->certain.reset();
    }
  }
  Clock& clock = place.happens_before.clockOf(place.stream);
  for (const MemoryAccess& memory_access : memory_accesses) {
    const AccessSet& accesses = state.accessesOf(place, *memory_access.allocation);
    for (const Access* earlier : accesses.near(memory_access.access.runs)) {
      if (isConflict(state, place, *earlier, memory_access.access)) {
        clock.raise(earlier->work->stream, earlier->work->count);
      }
    }
  }
}

std::optional<WaitReport> hostWaitFor(const State& state, const Access& earlier) {
  const auto wait = state.live.host_waits.find(earlier.work->stream);
  if (wait == state.live.host_waits.end()) {
    return std::nullopt;
  }
  return WaitReport{wait->second.stack, true, isAfter(wait->second, earlier)};
}

Finding freedInput(const State& state, const Launch& replay, const Capture::Kept& kept) {
  Finding finding{FindingKind::GraphInput};
  finding.earlier = describe(state, kept.access, kept.allocation->address);
  finding.later = finding.earlier;
  finding.later.stream = state.streams()[replay.place.stream];
  finding.later.stack = replay.stack;
  finding.later.captured = kept.access.work->stack;
  finding.allocation = describe(state, *kept.allocation);
  finding.allocation.freed = kept.allocation->freed;
  return finding;
}

std::vector<Finding> findUnjoined(const State& state, Capture& capture) {
  std::vector<Finding> findings;
  const Clock& joined = capture.happens_before.clockOf(capture.origin);
  for (const auto& [stream, work] : capture.last_work) {
    if (stream != capture.origin && joined.of(stream) < work->count) {
      Finding& finding = findings.emplace_back(Finding{FindingKind::Capture});
      finding.later.kernel = work->kernel;
      finding.later.stream = state.streams()[stream];
      finding.later.stack = work->stack;
    }
  }
  return findings;
}

const Access* findHostConflict(const State& state, const Allocation& allocation,
                               const Access& access) {
  const Access* latest = nullptr;
  for (const Access* earlier : allocation.accesses.near(access.runs)) {
    if ((earlier->is_write || access.is_write) && !state.live.isKnownToHost(*earlier) &&
        (latest == nullptr || latest->work->serial <= earlier->work->serial) &&
        earlier->runs.overlap(access.runs) == Overlap::Yes) {
      latest = earlier;
    }
  }
  return latest;
}

}  // namespace c10::openreg
