#include "csrc/extras/sanitizer/State.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

namespace c10::openreg {

namespace {

Capture::Touched& touchedBy(Capture& capture, const Allocation& allocation) {
  const auto [entry, is_new] = capture.touched.try_emplace(allocation.serial);
  if (is_new && allocation.written != nullptr) {
    entry->second.written = std::make_unique<WrittenBytes>(allocation.address, allocation.size);
  }
  return entry->second;
}

std::unique_ptr<const WorkDetails> detailsOf(const Stack& captured) {
  WorkDetails details;
  details.captured = std::make_unique<const Stack>(captured);
  return std::make_unique<const WorkDetails>(std::move(details));
}

}  // namespace

void State::forget() {
  shadow.clear();
  pools_.clear();
  events.clear();
  captures.clear();
  streams_.clear();
  numbers_.clear();
  device_waits.clear();
  live = HappensBefore();
}

// --- Streams

StreamNumber State::numberOf(const OpenRegStream& stream) {
  const auto [entry, is_new] =
      numbers_.emplace(stream.stream(), static_cast<StreamNumber>(streams_.size()));
  if (is_new) {
    streams_.push_back(stream.unwrap());
    if (const auto wait = device_waits.find(stream.device_index()); wait != device_waits.end()) {
      live.host_waits[entry->second] = wait->second;
    }
  }
  return entry->second;
}

LaunchPlace State::placeOf(const OpenRegStream& stream, uint64_t capture) {
  const StreamNumber number = numberOf(stream);
  if (capture == 0) {
    return {live, number, 0, nullptr};
  }
  Capture& begun = captures[capture];
  return {begun.happens_before, number, capture, &begun};
}

// --- Memory

void State::resolve(std::vector<MemoryAccess>& memory_accesses) {
  for (MemoryAccess& memory_access : memory_accesses) {
    if (memory_access.allocation == nullptr) {
      memory_access.allocation =
          shadow.findOrAdd(memory_access.storage, memory_access.storage_size);
    }
    memory_access.allocation->is_host_memory |= memory_access.access.is_host_memory;
  }
}

AccessSet& State::accessesOf(const LaunchPlace& place, Allocation& allocation) {
  if (place.capture != nullptr) {
    return touchedBy(*place.capture, allocation).accesses;
  }
  return allocation.capture == 0
             ? allocation.accesses
             : pools_.try_emplace(allocation.pool, kMaxPoolAccesses).first->second;
}

std::unique_ptr<WrittenBytes>& State::writtenOf(const LaunchPlace& place, Allocation& allocation) {
  return place.capture != nullptr ? touchedBy(*place.capture, allocation).written
                                  : allocation.written;
}

void State::markWritten(std::unique_ptr<WrittenBytes>& written, const ByteRuns& runs) {
  if (written != nullptr) {
    counts.undecided += written->add(runs) ? 1 : 0;
    if (written->isWhole()) {
      written.reset();
    }
  }
}

void State::moveWritten(uintptr_t to, uintptr_t from, size_t nbytes) {
  const auto target = shadow.find(to);
  if (target == nullptr || target->written == nullptr) {
    return;
  }
  const auto source = shadow.find(from);
  if (source == nullptr || source->written == nullptr) {
    markWritten(target->written, ByteRuns(to, nbytes));
    markWritten(target->certain, ByteRuns(to, nbytes));
    return;
  }
  for (const auto& [first, last] : source->written->ranges()) {
    const uintptr_t begin = std::max(first, from);
    const uintptr_t end = std::min(last, from + nbytes);
    if (begin < end) {
      markWritten(target->written, ByteRuns(begin - from + to, end - begin));
      markWritten(target->certain, ByteRuns(begin - from + to, end - begin));
    }
  }
}

bool State::beginTrace(Allocation& allocation) {
  const bool is_first = allocation.pending_traces == 0;
  if (allocation.capture != 0 || (is_first && allocation.written == nullptr)) {
    return false;
  }
  if (is_first) {
    allocation.certain = std::make_unique<WrittenBytes>(*allocation.written);
  }
  ++allocation.pending_traces;
  return true;
}

void State::endTrace(Allocation& allocation, const std::vector<ByteRuns>& written,
                     bool is_complete) {
  for (const ByteRuns& runs : written) {
    markWritten(allocation.certain, runs);
  }
  if (!is_complete) {
    allocation.giveUpWritten();
  }
  if (--allocation.pending_traces == 0) {
    allocation.written = std::move(allocation.certain);
  }
}

void State::giveUpWritten() {
  shadow.forEach([](Allocation& allocation) { allocation.giveUpWritten(); });
  for (auto& [id, capture] : captures) {
    for (auto& [serial, touched] : capture.touched) {
      touched.written.reset();
    }
  }
}

void State::addAllocation(const Launch& by, const void* address, size_t size, MempoolId_t pool) {
  const LaunchPlace& place = by.place;
  Allocation& allocation = *shadow.add(reinterpret_cast<uintptr_t>(address), size);
  allocation.owner = place.stream;
  allocation.pool = pool;
  allocation.capture = place.id;
  allocation.allocated = by.stack;
  if (place.id != 0 || options.finds_uninitialized) {
    allocation.written = std::make_unique<WrittenBytes>(allocation.address, size);
  }
  // Has no launch of its own: all launches of the owner so far may still use the memory.
  Access access;
  access.runs = ByteRuns(allocation.address, size);
  access.is_write = true;
  access.is_allocation = true;
  const LaunchCount count = place.happens_before.clockOf(place.stream).of(place.stream);
  access.work =
      std::make_shared<const Work>(Work{last_launch_, by.kernel, count, place.stream, by.stack});
  accessesOf(place, allocation).add(std::move(access));
}

std::vector<Hazard> State::hazardsOf(const LaunchPlace& place,
                                     const std::shared_ptr<Allocation>& allocation) {
  allocation->owner = place.stream;
  const AccessSet accesses = std::exchange(accessesOf(place, *allocation), AccessSet());
  std::vector<Hazard> hazards;
  if (!options.finds_lifetimes) {
    return hazards;
  }
  accesses.forEach([&](const Access& access) {
    const StreamNumber user = access.work->stream;
    const bool is_announced =
        std::count(allocation->used_on.begin(), allocation->used_on.end(), user) > 0;
    if (!access.is_allocation && !is_announced &&
        !place.happens_before.isOrdered(access, place.stream)) {
      hazards.push_back({shadow.serial(), access, allocation, {}});
    }
  });
  return hazards;
}

void State::addHazards(const LaunchPlace& place, MempoolId_t pool, std::vector<Hazard> hazards) {
  std::vector<Hazard>& known = place.happens_before.hazards[{place.stream, pool}];
  std::move(hazards.begin(), hazards.end(), std::back_inserter(known));
  if (known.size() > kMaxHazards) {
    known.erase(known.begin(), known.begin() + kMaxHazards / 2);
    ++counts.forgotten;
  }
}

// --- Work

std::shared_ptr<const Work> State::commit(const Launch& launch,
                                          std::vector<MemoryAccess>& memory_accesses) {
  const LaunchPlace& place = launch.place;
  place.happens_before.takeOverHost(place.stream);
  Clock& clock = place.happens_before.clockOf(place.stream);
  const LaunchCount count = clock.of(place.stream) + 1;
  clock.raise(place.stream, count);
  ++counts.launches;
  WorkDetails details;
  if (keeps_clocks) {
    details.clock = std::make_unique<const Clock>(clock);
  }
  const auto work = std::make_shared<const Work>(
      Work{++last_launch_, launch.kernel, count, place.stream, launch.stack,
           keeps_clocks ? std::make_unique<const WorkDetails>(std::move(details)) : nullptr});
  if (place.capture != nullptr) {
    place.capture->last_work[place.stream] = work;
  }
  for (MemoryAccess& memory_access : memory_accesses) {
    Allocation& allocation = *memory_access.allocation;
    memory_access.access.work =
        memory_access.captured == nullptr
            ? work
            : std::make_shared<const Work>(Work{last_launch_, memory_access.captured->kernel, count,
                                                place.stream, launch.stack,
                                                detailsOf(memory_access.captured->stack)});
    if (place.capture != nullptr) {
      keepForReplay(place, memory_access);
    }
    if ((memory_access.access.is_write && memory_access.is_filled) || memory_access.is_unknown) {
      markWritten(writtenOf(place, allocation), memory_access.access.runs);
      if (!memory_access.is_traced && place.capture == nullptr) {
        markWritten(allocation.certain, memory_access.access.runs);
      }
    }
    AccessSet& accesses = accessesOf(place, allocation);
    // What a pending trace tells is compared with all of them.
    const bool is_needed = keeps_clocks && accesses.size() < kMaxAwaitingTrace;
    accesses.eraseNear(memory_access.access.runs, [&](const Access& old) {
      return !is_needed && Allocation::isReplaced(old, memory_access.access) &&
             place.happens_before.isOrdered(old, place.stream);
    });
    counts.forgotten += accesses.add(std::move(memory_access.access)) ? 1 : 0;
  }
  if (launch.replayed != 0) {
    endReplay(launch, memory_accesses);
  }
  return work;
}

void State::endReplay(const Launch& launch, const std::vector<MemoryAccess>& memory_accesses) {
  if (!options.finds_uninitialized) {
    for (const MemoryAccess& memory_access : memory_accesses) {
      memory_access.allocation->giveUpWritten();  // only the first replay matters
    }
  }
  if (const auto found = captures.find(launch.replayed); found != captures.end()) {
    found->second.last_replay = launch.place.happens_before.clockOf(launch.place.stream);
  }
}

void State::keepForReplay(const LaunchPlace& place, const MemoryAccess& memory_access) {
  Allocation& allocation = *memory_access.allocation;
  const auto& written = writtenOf(place, allocation);
  // The replay needs the contents that it has not written itself.
  const bool needs_contents = memory_access.is_read && allocation.capture != place.id &&
                              written != nullptr &&
                              written->lacks(memory_access.access.runs, nullptr) != Overlap::No;
  const auto [entry, is_new] =
      place.capture->kept.try_emplace({memory_access.access.runs, memory_access.access.is_write});
  entry->second = {memory_access.access, memory_access.allocation,
                   needs_contents || (!is_new && entry->second.is_read),
                   memory_access.is_unknown || (!is_new && entry->second.is_unknown)};
  allocation.is_graph_input = allocation.capture == 0;
}

// A pool that no other graph uses needs no state any more.
void State::forgetGraph(uint64_t id) {
  captures.erase(id);
  std::erase_if(pools_, [&](const auto& pool) {
    return std::none_of(captures.begin(), captures.end(), [&](const auto& entry) {
      const auto& kept = entry.second.kept;
      return std::any_of(kept.begin(), kept.end(), [&](const auto& one) {
        const Allocation& allocation = *one.second.allocation;
        return allocation.capture != 0 && allocation.pool == pool.first;
      });
    });
  });
}

SanitizerCounts State::countNow() {
  SanitizerCounts now = counts;
  std::unordered_set<const Work*> launches;
  const auto add = [&](const AccessSet& accesses) {
    now.remembered_access += accesses.size();
    now.bytes += accesses.memory();
    accesses.forEach([&](const Access& access) { launches.insert(access.work.get()); });
  };
  shadow.forEach([&](const Allocation& allocation) {
    ++now.live_allocations;
    add(allocation.accesses);
  });
  for (const auto& [id, accesses] : pools_) {
    add(accesses);
  }
  now.remembered_launches = launches.size();
  constexpr size_t kSharingCost = 2 * sizeof(void*);
  for (const Work* work : launches) {
    now.bytes += heapSize(sizeof(Work) + kSharingCost);
    now.bytes += work->details == nullptr ? 0 : heapSize(sizeof(WorkDetails));
    now.bytes += work->captured() == nullptr ? 0 : heapSize(sizeof(Stack));
  }
  for (const auto& [key, hazards] : live.hazards) {
    now.open_hazards += hazards.size();
  }
  return now;
}

}  // namespace c10::openreg
