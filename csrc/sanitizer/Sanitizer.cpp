#include "csrc/sanitizer/Sanitizer.h"

#include <c10/core/UndefinedTensorImpl.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "csrc/core/Mutex.h"
#include "csrc/core/PinnedMemory.h"
#include "csrc/sanitizer/AccessSet.h"
#include "csrc/sanitizer/ByteRuns.h"
#include "csrc/sanitizer/Clock.h"
#include "csrc/sanitizer/HostWatch.h"
#include "csrc/sanitizer/Shadow.h"
#include "csrc/sanitizer/Universe.h"
#include "csrc/sanitizer/WrittenOperands.h"
#include "torch_openreg/core/Sanitizer.h"

namespace c10::openreg {

std::atomic<bool> detail::is_sanitizer_on{false};

namespace {

std::atomic<ReportFinding> reporter{nullptr};

// Whether this thread has told the accesses of the kernel that it launches next.
thread_local bool has_recorded = false;

constexpr size_t kMaxHazards = 4096;  // of a stream and pool

constexpr size_t kMaxPoolAccesses = size_t(1) << 16;  // of a graphs' pool

// An access of a stream to pinned memory that is watched, with what a finding tells of it.
struct WatchedAccess {
  Access access;
  uintptr_t base;  // of the allocation
  AllocationReport allocation;
  std::unique_ptr<HostWatch> watch;
};

Access accessOf(const Operand& operand) {
  const TensorImpl& tensor = *operand.tensor;
  Access access;
  access.is_write = operand.is_written;
  access.is_host_memory = operand.is_host_memory;
  access.argument = operand.name;
  access.dtype = typeMetaToScalarType(tensor.dtype());
  access.sizes = shareSizes(tensor.sizes());
  const auto storage = reinterpret_cast<uintptr_t>(tensor.storage().data());
  if (storage != 0) {
    const size_t itemsize = tensor.itemsize();
    access.runs = ByteRuns(storage + static_cast<size_t>(tensor.storage_offset()) * itemsize,
                           tensor.sizes(), tensor.strides(), itemsize);
  }
  return access;
}

class Sanitizer {
 public:
  // --- Control

  void enable(const SanitizerOptions& options) {
    const Lock lock(mutex_);
    options_ = options;
    letHostBeWatched(options.finds_host_accesses && options.watches_pages);
    // A child knows nothing of its parent's work, and the lock may be taken in it for ever.
    [[maybe_unused]] static const int is_off_in_children =
        pthread_atfork(nullptr, nullptr, [] { detail::is_sanitizer_on.store(false); });
    if (!detail::is_sanitizer_on.load()) {
      forget();
      counts_ = {};
      not_seen_.clear();
      first_opened_ = last_opened_ = countOpenedPages();
    }
    detail::is_sanitizer_on.store(true);
  }

  void disable() {
    if (!detail::is_sanitizer_on.exchange(false)) {
      return;
    }
    const Lock lock(mutex_);
    letHostBeWatched(false);
    forget();
  }

  SanitizerCounts counts() {
    const Lock lock(mutex_);
    SanitizerCounts counts = counts_;
    counts.pages_opened = countOpenedPages() - first_opened_;
    std::unordered_set<const Work*> launches;
    const auto add = [&](const AccessSet& accesses) {
      counts.remembered_access += accesses.size();
      counts.bytes += accesses.memory();
      accesses.forEach([&](const Access& access) { launches.insert(access.work.get()); });
    };
    shadow_.forEach([&](const Allocation& allocation) {
      ++counts.live_allocations;
      add(allocation.accesses);
    });
    for (const auto& [id, accesses] : pools_) {
      add(accesses);
    }
    counts.remembered_launches = launches.size();
    constexpr size_t kSharingCost = 2 * sizeof(void*);
    counts.bytes += launches.size() * heapSize(sizeof(Work) + kSharingCost);
    for (const auto& [key, hazards] : live_.hazards) {
      counts.open_hazards += hazards.size();
    }
    return counts;
  }

  std::vector<std::pair<std::string, uint64_t>> notSeen() {
    const Lock lock(mutex_);
    return {not_seen_.begin(), not_seen_.end()};
  }

  void countNotSeen(const char* kernel) {
    const Lock lock(mutex_);
    ++counts_.not_seen;
    ++not_seen_[kernel];
    // It may have written anything.
    shadow_.forEach([](Allocation& allocation) { allocation.written.reset(); });
    for (auto& [id, capture] : captures_) {
      for (auto& [serial, touched] : capture.touched) {
        touched.written.reset();
      }
    }
  }

  // --- Launches

  struct Touch {
    Access access;
    uintptr_t storage;
    size_t storage_size;
    bool is_read = false;   // besides being written, or only so
    bool is_filled = true;  // if it is written: with something
    std::shared_ptr<Allocation> allocation{};
    std::shared_ptr<const Work> captured{};  // of a replay
  };

  void launch(const OpenRegStream& stream, const char* kernel, std::vector<Touch>& touches) {
    reportHostTouches();
    const Stack stack = gatherStack();
    const uint64_t capture = stream.captureId();
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      const Place place = placeOf(stream, capture);
      resolve(touches);
      findings = findAll(place, kernel, stack, touches);
      if (findings.empty()) {
        commit(place, kernel, stack, touches);
        return;
      }
    }
    report(findings);
    const Lock lock(mutex_);
    const Place place = placeOf(stream, capture);
    takeAsOrdered(place, touches);
    commit(place, kernel, stack, touches);
  }

  // What has been written of `from` has been written of `to`.
  void move(uintptr_t to, uintptr_t from, size_t nbytes) {
    const Lock lock(mutex_);
    const auto target = shadow_.find(to);
    if (target == nullptr || target->written == nullptr) {
      return;
    }
    const auto source = shadow_.find(from);
    if (source == nullptr || source->written == nullptr) {
      markWritten(*target, ByteRuns(to, nbytes));
      return;
    }
    for (const auto& [first, last] : source->written->ranges()) {
      const uintptr_t begin = std::max(first, from);
      const uintptr_t end = std::min(last, from + nbytes);
      if (begin < end) {
        markWritten(*target, ByteRuns(begin - from + to, end - begin));
      }
    }
  }

  void writtenElsewhere(uintptr_t address) {
    const Lock lock(mutex_);
    if (const auto allocation = shadow_.find(address)) {
      allocation->written.reset();
    }
  }

  void replay(uint64_t capture, const OpenRegStream& stream) {
    reportHostTouches();
    const Stack stack = gatherStack();
    std::vector<Finding> findings;
    std::vector<Touch> touches;
    {
      const Lock lock(mutex_);
      const auto found = captures_.find(capture);
      if (found == captures_.end()) {
        return;
      }
      const Place place = placeOf(stream, 0);
      place.universe.clockOf(place.stream).join(found->second.last_replay);
      for (const auto& [key, kept] : found->second.kept) {
        const Allocation& allocation = *kept.allocation;
        if (allocation.is_live || allocation.capture != 0) {
          touches.push_back({kept.access, allocation.address, allocation.size, kept.is_read, true,
                             kept.allocation, kept.access.work});
        } else {
          findings.push_back(freedInput(place.stream, stack, kept));
        }
      }
      std::vector<Finding> conflicts = findAll(place, "", stack, touches);
      std::move(conflicts.begin(), conflicts.end(), std::back_inserter(findings));
      if (findings.empty()) {
        commitReplay(capture, place, stack, touches);
        return;
      }
    }
    report(findings);
    const Lock lock(mutex_);
    const Place place = placeOf(stream, 0);
    takeAsOrdered(place, touches);
    commitReplay(capture, place, stack, touches);
  }

  // The host's own accesses to pinned memory. What is launched later is ordered behind them.
  void hostAccess(const char* kernel, const std::vector<Touch>& touches) {
    reportHostTouches();
    Stack stack = gatherStack();
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      for (const Touch& touch : touches) {
        const auto allocation = shadow_.find(touch.access.runs.begin());
        if (allocation == nullptr || !allocation->is_host_memory || !options_.finds_host_accesses) {
          continue;
        }
        const Access* conflicting = nullptr;
        for (const Access* earlier : allocation->accesses.near(touch.access.runs)) {
          if ((earlier->is_write || touch.access.is_write) && !live_.isKnownToHost(*earlier) &&
              (conflicting == nullptr || conflicting->work->serial <= earlier->work->serial) &&
              earlier->runs.overlap(touch.access.runs) == Overlap::Yes) {
            conflicting = earlier;
          }
        }
        if (conflicting == nullptr) {
          continue;
        }
        const Work& work = *conflicting->work;
        Finding finding{FindingKind::Host};
        finding.earlier = describe(*conflicting, work, allocation->address);
        finding.later =
            describe(touch.access, streams_[work.stream], kernel, stack, {}, allocation->address);
        finding.later.is_host = true;
        finding.allocation = describe(*allocation);
        findings.push_back(std::move(finding));
        // See Note [One finding for each mistake].
        Clock until;
        until.raise(work.stream, work.count);
        hostAwaits(until);
      }
    }
    report(findings);
  }

  void pinnedAllocated(const void* address, size_t size) {
    Stack stack = gatherStack();
    const Lock lock(mutex_);
    Allocation& allocation = *shadow_.add(reinterpret_cast<uintptr_t>(address), size);
    allocation.is_host_memory = true;
    allocation.allocated = std::move(stack);
  }

  void pinnedFreed(const void* address) {
    std::shared_ptr<Allocation> allocation;  // destroyed without the lock
    const Lock lock(mutex_);
    allocation = shadow_.take(reinterpret_cast<uintptr_t>(address));
    endWatches([address](const WatchedAccess& one) {
      return one.base == reinterpret_cast<uintptr_t>(address);
    });
  }

  void pinnedCopied(const void* address) {
    const Lock lock(mutex_);
    if (const auto allocation = shadow_.find(reinterpret_cast<uintptr_t>(address))) {
      watchHost(*allocation);
    }
  }

  // Reports what the host has done to watched memory since the last call.
  void reportHostTouches() {
    if (!isSanitizerOn() || !HostWatch::isAnyAlive()) {
      return;
    }
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      if (HostWatch::takeAnyTouched()) {
        findings = takeHostTouches();
      }
      const uint64_t opened = countOpenedPages();
      if (std::exchange(last_opened_, opened) != opened) {
        protectOpenedPages();
      }
    }
    report(findings);
  }

  // --- Graphs

  void captureBegun(uint64_t capture, const OpenRegStream& stream) {
    Stack stack = gatherStack();
    const Lock lock(mutex_);
    Capture& begun = captures_[capture];
    begun.origin = numberOf(stream);
    begun.begun = std::move(stack);
    begun.is_under_way = true;
  }

  void captureEnded(uint64_t capture, bool is_valid) {
    const Lock lock(mutex_);
    const auto found = captures_.find(capture);
    if (found == captures_.end()) {
      return;
    }
    if (!is_valid) {
      forgetGraph(capture);
      return;
    }
    found->second.is_under_way = false;
    found->second.universe = Universe();
    found->second.touched.clear();
    found->second.last_work.clear();
  }

  void forgetCapture(uint64_t capture) {
    const Lock lock(mutex_);
    forgetGraph(capture);
  }

  // `own_capture` is that of the calling thread's current stream.
  void refusedCall(orError_t error, const char* caller, const OpenRegStream& current,
                   uint64_t own_capture) {
    const Stack stack = gatherStack();
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      if (!options_.finds_refused_calls) {
        return;
      }
      const auto found = captureUnderWay(own_capture);
      if (error == orErrorStreamCaptureUnjoined && found != captures_.end()) {
        findings = findUnjoined(found->second);
      }
      if (findings.empty()) {
        Finding& finding = findings.emplace_back(Finding{FindingKind::Capture});
        finding.later.kernel = caller;
        finding.later.stream = current.unwrap();
        finding.later.stack = stack;
      }
      for (Finding& finding : findings) {
        finding.error = error;
        finding.earlier.kernel = "Graph.capture_begin";
        if (found != captures_.end()) {
          finding.earlier.stream = streams_[found->second.origin];
          finding.earlier.stack = found->second.begun;
        }
      }
    }
    report(findings);
  }

  // --- Order

  void eventRecorded(const void* event, const OpenRegStream& stream) {
    reportHostTouches();
    const uint64_t capture = stream.captureId();
    const Lock lock(mutex_);
    const Place place = placeOf(stream, capture);
    events_[event] = {std::make_shared<const Clock>(place.universe.clockOf(place.stream)), capture};
  }

  void eventAwaited(const void* event, const OpenRegStream& stream) {
    reportHostTouches();
    const Stack stack = gatherStack();
    const uint64_t capture = stream.captureId();
    const Lock lock(mutex_);
    const auto found = events_.find(event);
    if (found != events_.end() && found->second.capture == capture) {
      const Place place = placeOf(stream, capture);
      place.universe.await(place.stream, *found->second.clock, stack);
    }
  }

  void streamAwaited(const OpenRegStream& stream, const OpenRegStream& other) {
    reportHostTouches();
    const Stack stack = gatherStack();
    const uint64_t capture = other.captureId();  // the wait takes the stream there
    const Lock lock(mutex_);
    const Place place = placeOf(stream, capture);
    const Clock clock = place.universe.clockOf(numberOf(other));
    place.universe.await(place.stream, clock, stack);
  }

  void eventDestroyed(const void* event) {
    const Lock lock(mutex_);
    events_.erase(event);
  }

  void eventDone(const void* event) {
    reportHostTouches();
    const Lock lock(mutex_);
    const auto found = events_.find(event);
    if (found != events_.end() && found->second.capture == 0) {
      hostAwaits(*found->second.clock);
    }
  }

  void streamDone(const OpenRegStream& stream) {
    reportHostTouches();
    const Lock lock(mutex_);
    hostAwaits(live_.clockOf(numberOf(stream)));
  }

  void deviceDone(DeviceIndex device) {
    reportHostTouches();
    const Lock lock(mutex_);
    for (StreamNumber number = 0; number < streams_.size(); ++number) {
      if (streams_[number].device_index() == device) {
        hostAwaits(live_.clockOf(number));
      }
    }
  }

  // --- Memory

  void allocated(const void* address, size_t size, const OpenRegStream& stream, MempoolId_t pool) {
    const Stack stack = gatherStack();
    const uint64_t capture = stream.captureId();
    const Lock lock(mutex_);
    const Place place = placeOf(stream, capture);
    Allocation& allocation = *shadow_.add(reinterpret_cast<uintptr_t>(address), size);
    allocation.owner = place.stream;
    allocation.pool = pool;
    allocation.capture = capture;
    allocation.allocated = stack;
    if (capture != 0 || options_.finds_uninitialized) {
      allocation.written = std::make_unique<WrittenBytes>(allocation.address, size);
    }
    // No launch of its own: what the owner has launched so far may still use the memory.
    Access access;
    access.runs = ByteRuns(allocation.address, size);
    access.is_write = true;
    access.is_allocation = true;
    const LaunchCount count = place.universe.clockOf(place.stream).of(place.stream);
    access.work = std::make_shared<const Work>(Work{last_launch_, "", count, place.stream, stack});
    accessesOf(place, allocation).add(std::move(access));
  }

  void usedOn(const void* address, const OpenRegStream& stream) {
    const Lock lock(mutex_);
    if (const auto allocation = shadow_.find(reinterpret_cast<uintptr_t>(address))) {
      allocation->used_on.push_back(numberOf(stream));
    }
  }

  void freed(const void* address, const OpenRegStream& owner, MempoolId_t pool) {
    const uint64_t capture = owner.captureId();
    std::shared_ptr<Allocation> allocation;  // destroyed without the lock
    std::vector<Hazard> hazards;
    {
      const Lock lock(mutex_);
      allocation = shadow_.take(reinterpret_cast<uintptr_t>(address));
      // Of a graph's own memory only what it frees itself is given out again, to itself.
      if (allocation == nullptr || (allocation->capture != 0 && allocation->capture != capture)) {
        return;
      }
      hazards = hazardsOf(placeOf(owner, allocation->capture), allocation);
    }
    // Nearly always. The stack is of use to hazards only.
    if (hazards.empty()) {
      return;
    }
    const Stack stack = gatherStack();
    for (Hazard& hazard : hazards) {
      hazard.freed = stack;
    }
    const Lock lock(mutex_);
    const Place place = placeOf(owner, allocation->capture);
    std::vector<Hazard>& known = place.universe.hazards[{place.stream, pool}];
    std::move(hazards.begin(), hazards.end(), std::back_inserter(known));
    if (known.size() > kMaxHazards) {
      known.erase(known.begin(), known.begin() + kMaxHazards / 2);
      ++counts_.forgotten;
    }
  }

 private:
  struct Event {
    std::shared_ptr<const Clock> clock;
    uint64_t capture;  // that it was recorded in, or 0
  };

  // Where something happens: a stream, in the universe that runs or in a capture.
  struct Place {
    Universe& universe;
    StreamNumber stream;
    uint64_t id;       // of the capture, or 0
    Capture* capture;  // or null
  };

  using Captures = std::unordered_map<uint64_t, Capture>;

  void forget() OPENREG_REQUIRES(mutex_) {
    shadow_.clear();
    watched_.clear();
    pools_.clear();
    events_.clear();
    captures_.clear();
    streams_.clear();
    numbers_.clear();
    live_ = Universe();
  }

  StreamNumber numberOf(const OpenRegStream& stream) OPENREG_REQUIRES(mutex_) {
    const auto [entry, is_new] =
        numbers_.emplace(stream.unwrap(), static_cast<StreamNumber>(streams_.size()));
    if (is_new) {
      streams_.push_back(stream.unwrap());
    }
    return entry->second;
  }

  Place placeOf(const OpenRegStream& stream, uint64_t id) OPENREG_REQUIRES(mutex_) {
    const StreamNumber number = numberOf(stream);
    if (id == 0) {
      return {live_, number, 0, nullptr};
    }
    Capture& capture = captures_[id];
    return {capture.universe, number, id, &capture};
  }

  // Of the streams that run.
  void hostAwaits(const Clock& clock) OPENREG_REQUIRES(mutex_) {
    live_.hostAwaits(clock);
    endWatches([&](const WatchedAccess& one)
                   OPENREG_REQUIRES(mutex_) { return live_.isKnownToHost(one.access); });
  }

  // --- Pages of pinned memory; see HostWatch.h

  // Watches what streams do to the allocation and the host is not ordered behind.
  void watchHost(const Allocation& allocation) OPENREG_REQUIRES(mutex_) {
    // It may have been turned off since the caller asked.
    if (!isSanitizerOn() || !options_.finds_host_accesses || !options_.watches_pages) {
      return;
    }
    std::vector<const Access*> accesses;
    allocation.accesses.forEach([&](const Access& access) { accesses.push_back(&access); });
    for (const Access* access : accesses) {
      if (access->is_watched || access->is_allocation || live_.isKnownToHost(*access)) {
        continue;
      }
      access->is_watched = true;
      auto watch = std::make_unique<HostWatch>(access->runs, access->is_write);
      if (watch->isWatching()) {
        watched_.push_back({*access, allocation.address, describe(allocation), std::move(watch)});
      } else {
        ++counts_.copies_not_watched;
      }
    }
  }

  // Ends the watches that are of no use any more, but for those with a touch to report.
  template <typename IsOver>
  void endWatches(const IsOver& is_over) OPENREG_REQUIRES(mutex_) {
    std::erase_if(watched_, [&](WatchedAccess& one) OPENREG_REQUIRES(mutex_) {
      return is_over(one) && !one.watch->end();
    });
  }

  // One finding for each place and stream, about the latest copy.
  std::vector<Finding> takeHostTouches() OPENREG_REQUIRES(mutex_) {
    std::vector<WatchedAccess> touched;
    std::erase_if(watched_, [&](WatchedAccess& one) {
      const bool is_touched = one.watch->isTouched();
      if (is_touched) {
        one.watch->end();
        touched.push_back(std::move(one));
      }
      return is_touched;
    });
    const auto rank = [](const WatchedAccess& one) {
      const HostTouch& touch = one.watch->touch();
      return std::make_tuple(touch.address, touch.thread, one.access.work->stream);
    };
    std::map<decltype(rank(touched.front())), const WatchedAccess*> latest;
    for (const WatchedAccess& one : touched) {
      const WatchedAccess*& known = latest[rank(one)];
      if (known == nullptr || known->access.work->count < one.access.work->count) {
        known = &one;
      }
    }
    std::vector<const WatchedAccess*> in_order;
    for (const auto& [key, one] : latest) {
      in_order.push_back(one);
    }
    std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
      return a->watch->touch().order < b->watch->touch().order;
    });
    std::vector<Finding> findings;
    for (const WatchedAccess* one : in_order) {
      const HostTouch& touch = one->watch->touch();
      const Work& work = *one->access.work;
      Finding finding{FindingKind::Host};
      finding.earlier = describe(one->access, work, one->base);
      finding.later.is_write = touch.is_write;
      finding.later.is_host = true;
      finding.later.thread = touch.thread;
      finding.later.stream = finding.earlier.stream;
      finding.later.offset = static_cast<int64_t>(touch.address - one->base);
      finding.later.nbytes = 1;
      finding.later.stack = touch.stack();
      finding.allocation = one->allocation;
      findings.push_back(std::move(finding));
      // See Note [One finding for each mistake].
      Clock until;
      until.raise(work.stream, work.count);
      hostAwaits(until);
    }
    return findings;
  }

  // --- Order

  bool isConflict(const Place& place, const Access& earlier, const Access& later)
      OPENREG_REQUIRES(mutex_) {
    if ((!earlier.is_write && !later.is_write) || place.universe.isOrdered(earlier, place.stream) ||
        !(earlier.is_allocation ? options_.finds_lifetimes : options_.finds_races)) {
      return false;
    }
    const Overlap overlap = earlier.runs.overlap(later.runs);
    counts_.undecided += overlap == Overlap::Undecided ? 1 : 0;
    return overlap == Overlap::Yes;
  }

  void resolve(std::vector<Touch>& touches) OPENREG_REQUIRES(mutex_) {
    for (Touch& touch : touches) {
      touch.allocation = shadow_.findOrAdd(touch.storage, touch.storage_size);
      touch.allocation->is_host_memory |= touch.access.is_host_memory;
    }
  }

  // Graphs that share a pool share its memory: what they do to it is kept by address.
  AccessSet& accessesOf(const Place& place, Allocation& allocation) OPENREG_REQUIRES(mutex_) {
    if (place.capture != nullptr) {
      return touchedBy(*place.capture, allocation).accesses;
    }
    return allocation.capture == 0
               ? allocation.accesses
               : pools_.try_emplace(allocation.pool, kMaxPoolAccesses).first->second;
  }

  static Capture::Touched& touchedBy(Capture& capture, const Allocation& allocation) {
    const auto [entry, is_new] = capture.touched.try_emplace(allocation.serial);
    if (is_new && allocation.written != nullptr) {
      entry->second.written = std::make_unique<WrittenBytes>(allocation.address, allocation.size);
    }
    return entry->second;
  }

  // --- Written bytes; see Note [Uninitialized memory]

  // What has been written of an allocation; of another one than the capture's own, by the capture.
  static std::unique_ptr<WrittenBytes>& writtenOf(const Place& place, Allocation& allocation) {
    return place.capture != nullptr ? touchedBy(*place.capture, allocation).written
                                    : allocation.written;
  }

  void markWritten(std::unique_ptr<WrittenBytes>& written, const ByteRuns& runs)
      OPENREG_REQUIRES(mutex_) {
    if (written != nullptr) {
      counts_.undecided += written->add(runs) ? 1 : 0;
      if (written->isWhole()) {
        written.reset();
      }
    }
  }

  void markWritten(Allocation& allocation, const ByteRuns& runs) OPENREG_REQUIRES(mutex_) {
    markWritten(allocation.written, runs);
  }

  // Whether the access reads what nobody wrote. In a capture, memory from outside may be written
  // before the replay.
  bool isUnwrittenRead(const Place& place, const Touch& touch, uintptr_t* first)
      OPENREG_REQUIRES(mutex_) {
    Allocation& allocation = *touch.allocation;
    const bool is_of_graph = allocation.capture != 0 && place.capture == nullptr;
    if (!touch.is_read || (!is_of_graph && !options_.finds_uninitialized) ||
        (place.capture != nullptr && allocation.capture != place.id)) {
      return false;
    }
    const auto& written = writtenOf(place, allocation);
    const Overlap lacks =
        written == nullptr ? Overlap::No : written->lacks(touch.access.runs, first);
    counts_.undecided += lacks == Overlap::Undecided ? 1 : 0;
    return lacks == Overlap::Yes &&
           (options_.finds_uninitialized || writerOf(place, touch) != nullptr);
  }

  // What would have written it in a replay of its graph; null if nothing would.
  const Access* writerOf(const Place& place, const Touch& touch) OPENREG_REQUIRES(mutex_) {
    const auto graph = captures_.find(touch.allocation->capture);
    if (place.capture != nullptr || graph == captures_.end()) {
      return nullptr;
    }
    const Access* writer = nullptr;
    for (const auto& [key, kept] : graph->second.kept) {
      if (kept.access.is_write && kept.allocation == touch.allocation &&
          (writer == nullptr || writer->work->serial < kept.access.work->serial) &&
          kept.access.runs.overlap(touch.access.runs) == Overlap::Yes) {
        writer = &kept.access;
      }
    }
    return writer;
  }

  Finding unwrittenRead(const Place& place, const char* kernel, const Stack& stack,
                        const Touch& touch, uintptr_t first) OPENREG_REQUIRES(mutex_) {
    const Allocation& allocation = *touch.allocation;
    Finding finding{FindingKind::Uninitialized};
    finding.later = describeLater(place.stream, kernel, stack, touch, allocation.address);
    finding.allocation = describe(allocation);
    finding.unwritten = static_cast<int64_t>(first - allocation.address);
    finding.is_in_capture = place.capture != nullptr;
    if (const Access* writer = writerOf(place, touch)) {
      finding.earlier = describe(*writer, *writer->work, allocation.address);
    } else {
      finding.earlier.is_allocation = true;
      finding.earlier.stream = finding.allocation.stream;
      finding.earlier.stack = allocation.allocated;
    }
    return finding;
  }

  // --- Finding. Changes nothing but what a repetition would change as well.

  std::vector<Finding> findAll(const Place& place, const char* kernel, const Stack& stack,
                               const std::vector<Touch>& touches) OPENREG_REQUIRES(mutex_) {
    std::vector<Finding> findings;
    for (const Touch& touch : touches) {
      // Of each stream the latest access.
      c10::SmallVector<const Access*, 4> conflicts;
      const AccessSet& accesses = accessesOf(place, *touch.allocation);
      for (const Access* earlier : accesses.near(touch.access.runs)) {
        if (!isConflict(place, *earlier, touch.access)) {
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
      for (const Access* earlier : conflicts) {
        const bool is_same = std::any_of(
            findings.begin(), findings.end(), [&](const Finding& one) OPENREG_REQUIRES(mutex_) {
              return !one.allocation.is_freed &&
                     one.earlier.is_allocation == earlier->is_allocation &&
                     one.earlier.stream == streams_[earlier->work->stream] &&
                     one.earlier.kernel == earlier->work->kernel &&
                     one.earlier.stack.here == earlier->work->stack.here;
            });
        if (!is_same) {
          findings.push_back(conflict(place, kernel, stack, touch, *earlier, *touch.allocation));
        }
      }
      findHazards(place, kernel, stack, touch, findings);
      if (uintptr_t first = 0; isUnwrittenRead(place, touch, &first)) {
        findings.push_back(unwrittenRead(place, kernel, stack, touch, first));
      }
    }
    return findings;
  }

  void findHazards(const Place& place, const char* kernel, const Stack& stack, const Touch& touch,
                   std::vector<Finding>& findings) OPENREG_REQUIRES(mutex_) {
    const Allocation& allocation = *touch.allocation;
    auto& all = place.universe.hazards;
    if (!allocation.owner.has_value() || all.empty()) {
      return;
    }
    const auto found = all.find({*allocation.owner, allocation.pool});
    if (found == all.end()) {
      return;
    }
    std::erase_if(found->second, [&](const Hazard& hazard) OPENREG_REQUIRES(mutex_) {
      return place.universe.isOrdered(hazard.access, *allocation.owner);
    });
    // Of each free and stream the last use, which is the one to wait for.
    for (auto it = found->second.rbegin(); it != found->second.rend(); ++it) {
      const Hazard& hazard = *it;
      if (!isOpen(place, hazard, touch)) {
        continue;
      }
      const bool is_same = std::any_of(
          findings.begin(), findings.end(), [&](const Finding& one) OPENREG_REQUIRES(mutex_) {
            return one.allocation.is_freed && one.allocation.freed.here == hazard.freed.here &&
                   one.earlier.stream == streams_[hazard.access.work->stream];
          });
      if (is_same) {
        continue;
      }
      Finding finding = conflict(place, kernel, stack, touch, hazard.access, *hazard.allocation);
      finding.kind = FindingKind::Lifetime;
      finding.allocation.is_freed = true;
      finding.allocation.freed = hazard.freed;
      finding.reused = describe(allocation);
      finding.later.offset = static_cast<int64_t>(touch.access.runs.begin() - allocation.address);
      findings.push_back(std::move(finding));
    }
    if (found->second.empty()) {
      all.erase(found);
    }
  }

  // Whether the work is the first that the hazard can harm.
  bool isOpen(const Place& place, const Hazard& hazard, const Touch& touch)
      OPENREG_REQUIRES(mutex_) {
    if (touch.allocation->serial <= hazard.serial ||
        place.universe.isOrdered(hazard.access, place.stream)) {
      return false;
    }
    return !options_.is_lifetime_exact ||
           ((touch.access.is_write || hazard.access.is_write) &&
            hazard.access.runs.overlap(touch.access.runs) == Overlap::Yes);
  }

  AllocationReport describe(const Allocation& allocation) OPENREG_REQUIRES(mutex_) {
    AllocationReport report;
    report.size = allocation.size;
    report.has_stream = allocation.owner.has_value();
    if (report.has_stream) {
      report.stream = streams_[*allocation.owner];
    }
    report.is_host_memory = allocation.is_host_memory;
    report.allocated = allocation.allocated;
    return report;
  }

  AccessReport describe(const Access& access, const Stream& stream, const char* kernel,
                        const Stack& stack, const std::shared_ptr<const Work>& captured,
                        uintptr_t base) {
    AccessReport report;
    report.kernel = kernel;
    report.argument = access.argument;
    report.operand = access.operand;
    report.is_write = access.is_write;
    report.is_allocation = access.is_allocation;
    report.stream = stream;
    report.offset = static_cast<int64_t>(access.runs.begin() - base);
    report.nbytes = access.runs.byteCount();
    report.dtype = access.dtype;
    report.sizes = access.sizes == nullptr ? std::vector<int64_t>() : *access.sizes;
    report.stack = stack;
    report.captured = captured == nullptr ? Stack() : captured->stack;
    return report;
  }

  AccessReport describe(const Access& access, const Work& work, uintptr_t base)
      OPENREG_REQUIRES(mutex_) {
    return describe(access, streams_[work.stream], work.kernel, work.stack, work.captured, base);
  }

  AccessReport describeLater(StreamNumber stream, const char* kernel, const Stack& stack,
                             const Touch& touch, uintptr_t base) OPENREG_REQUIRES(mutex_) {
    const char* const name = touch.captured == nullptr ? kernel : touch.captured->kernel;
    return describe(touch.access, streams_[stream], name, stack, touch.captured, base);
  }

  Finding conflict(const Place& place, const char* kernel, const Stack& stack, const Touch& touch,
                   const Access& earlier, const Allocation& allocation) OPENREG_REQUIRES(mutex_) {
    Finding finding{earlier.is_allocation ? FindingKind::Lifetime : FindingKind::Race};
    const Work& work = *earlier.work;
    finding.earlier = describe(earlier, work, allocation.address);
    finding.later = describeLater(place.stream, kernel, stack, touch, allocation.address);
    finding.allocation = describe(allocation);
    finding.is_in_capture = place.capture != nullptr;
    const auto& waits = place.universe.waits;
    if (const auto wait = waits.find({place.stream, work.stream}); wait != waits.end()) {
      finding.has_waited = true;
      finding.waited = wait->second;
    }
    return finding;
  }

  Finding freedInput(StreamNumber stream, const Stack& stack, const Capture::Kept& kept)
      OPENREG_REQUIRES(mutex_) {
    Finding finding{FindingKind::GraphInput};
    const Work& work = *kept.access.work;
    const uintptr_t base = kept.access.runs.begin();
    finding.earlier = describe(kept.access, work, base);
    finding.later =
        describe(kept.access, streams_[stream], work.kernel, stack, kept.access.work, base);
    finding.allocation.size = kept.allocation->size;
    finding.allocation.allocated = kept.allocation->allocated;
    return finding;
  }

  // Of each branch that the capture's first stream has not waited for, the last launch.
  std::vector<Finding> findUnjoined(Capture& capture) OPENREG_REQUIRES(mutex_) {
    std::vector<Finding> findings;
    const Clock& joined = capture.universe.clockOf(capture.origin);
    for (const auto& [stream, work] : capture.last_work) {
      if (stream != capture.origin && joined.of(stream) < work->count) {
        Finding& finding = findings.emplace_back(Finding{FindingKind::Capture});
        finding.later.kernel = work->kernel;
        finding.later.stream = streams_[stream];
        finding.later.stack = work->stack;
      }
    }
    return findings;
  }

  // The given one; else the one that began last.
  Captures::iterator captureUnderWay(uint64_t id) OPENREG_REQUIRES(mutex_) {
    if (id != 0) {
      return captures_.find(id);
    }
    auto latest = captures_.end();
    for (auto one = captures_.begin(); one != captures_.end(); ++one) {
      if (one->second.is_under_way && (latest == captures_.end() || latest->first < one->first)) {
        latest = one;
      }
    }
    return latest;
  }

  static void report(const std::vector<Finding>& findings) {
    if (const ReportFinding report = reporter.load(std::memory_order_relaxed)) {
      for (const Finding& finding : findings) {
        report(finding);
      }
    }
  }

  // Of memory that has been freed: what its owner is not ordered behind and has not been told of.
  std::vector<Hazard> hazardsOf(const Place& place, const std::shared_ptr<Allocation>& allocation)
      OPENREG_REQUIRES(mutex_) {
    allocation->owner = place.stream;
    const AccessSet accesses = std::exchange(accessesOf(place, *allocation), AccessSet());
    std::vector<Hazard> hazards;
    if (!options_.finds_lifetimes) {
      return hazards;
    }
    const uint64_t serial = shadow_.serial();
    accesses.forEach([&](const Access& access) {
      const StreamNumber user = access.work->stream;
      const bool is_announced =
          std::count(allocation->used_on.begin(), allocation->used_on.end(), user) > 0;
      if (!access.is_allocation && !is_announced &&
          !place.universe.isOrdered(access, place.stream)) {
        hazards.push_back({serial, access, allocation, {}});
      }
    });
    return hazards;
  }

  // See Note [One finding for each mistake].
  void takeAsOrdered(const Place& place, const std::vector<Touch>& touches)
      OPENREG_REQUIRES(mutex_) {
    // The hazards first: what is open depends on what is ordered.
    for (const Touch& touch : touches) {
      Allocation& allocation = *touch.allocation;
      auto& hazards = place.universe.hazards;
      const auto found = allocation.owner.has_value()
                             ? hazards.find({*allocation.owner, allocation.pool})
                             : hazards.end();
      if (found != hazards.end()) {
        std::erase_if(found->second, [&](const Hazard& hazard) OPENREG_REQUIRES(mutex_) {
          return isOpen(place, hazard, touch);
        });
      }
      if (isUnwrittenRead(place, touch, nullptr)) {
        writtenOf(place, allocation).reset();
      }
    }
    Clock& clock = place.universe.clockOf(place.stream);
    for (const Touch& touch : touches) {
      const AccessSet& accesses = accessesOf(place, *touch.allocation);
      for (const Access* earlier : accesses.near(touch.access.runs)) {
        if (isConflict(place, *earlier, touch.access)) {
          clock.raise(earlier->work->stream, earlier->work->count);
        }
      }
    }
  }

  // --- Remembering

  void commit(const Place& place, const char* kernel, const Stack& stack,
              std::vector<Touch>& touches) OPENREG_REQUIRES(mutex_) {
    place.universe.takeOverHost(place.stream);
    Clock& clock = place.universe.clockOf(place.stream);
    const LaunchCount count = clock.of(place.stream) + 1;
    clock.raise(place.stream, count);
    ++counts_.launches;
    const auto work =
        std::make_shared<const Work>(Work{++last_launch_, kernel, count, place.stream, stack});
    if (place.capture != nullptr) {
      place.capture->last_work[place.stream] = work;
    }
    for (Touch& touch : touches) {
      Allocation& allocation = *touch.allocation;
      touch.access.work =
          touch.captured == nullptr
              ? work
              : std::make_shared<const Work>(Work{last_launch_, touch.captured->kernel, count,
                                                  place.stream, stack, touch.captured});
      if (place.capture != nullptr) {
        keepForReplay(place, touch);
      }
      if (touch.access.is_write && touch.is_filled) {
        markWritten(writtenOf(place, allocation), touch.access.runs);
      }
      AccessSet& accesses = accessesOf(place, allocation);
      accesses.eraseNear(touch.access.runs, [&](const Access& old) {
        return Allocation::isReplaced(old, touch.access) &&
               place.universe.isOrdered(old, place.stream);
      });
      counts_.forgotten += accesses.add(std::move(touch.access)) ? 1 : 0;
    }
  }

  void commitReplay(uint64_t capture, const Place& place, const Stack& stack,
                    std::vector<Touch>& touches) OPENREG_REQUIRES(mutex_) {
    commit(place, "", stack, touches);
    for (const Touch& touch : touches) {
      if (touch.allocation->is_host_memory) {
        watchHost(*touch.allocation);
      }
    }
    if (!options_.finds_uninitialized) {
      for (const Touch& touch : touches) {
        touch.allocation->written.reset();  // only the first replay matters
      }
    }
    if (const auto found = captures_.find(capture); found != captures_.end()) {
      found->second.last_replay = place.universe.clockOf(place.stream);
    }
  }

  void keepForReplay(const Place& place, const Touch& touch) OPENREG_REQUIRES(mutex_) {
    Allocation& allocation = *touch.allocation;
    const auto& written = writtenOf(place, allocation);
    // Of what it has not written itself, the replay needs the contents.
    const bool needs_contents = touch.is_read && allocation.capture != place.id &&
                                written != nullptr &&
                                written->lacks(touch.access.runs, nullptr) != Overlap::No;
    const auto [entry, is_new] =
        place.capture->kept.try_emplace({touch.access.runs, touch.access.is_write});
    entry->second = {touch.access, touch.allocation,
                     needs_contents || (!is_new && entry->second.is_read)};
  }

  // Of a pool that no other graph uses, nothing is needed any more.
  void forgetGraph(uint64_t id) OPENREG_REQUIRES(mutex_) {
    captures_.erase(id);
    std::erase_if(pools_, [&](const auto& pool) OPENREG_REQUIRES(mutex_) {
      return std::none_of(captures_.begin(), captures_.end(), [&](const auto& entry) {
        const auto& kept = entry.second.kept;
        return std::any_of(kept.begin(), kept.end(), [&](const auto& one) {
          const Allocation& allocation = *one.second.allocation;
          return allocation.capture != 0 && allocation.pool == pool.first;
        });
      });
    });
  }

  Mutex mutex_;  // before the runtime's lock of watches; else a leaf
  SanitizerOptions options_ OPENREG_GUARDED_BY(mutex_);
  SanitizerCounts counts_ OPENREG_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> not_seen_ OPENREG_GUARDED_BY(mutex_);
  Shadow shadow_ OPENREG_GUARDED_BY(mutex_);
  std::map<MempoolId_t, AccessSet> pools_ OPENREG_GUARDED_BY(mutex_);  // of graphs
  std::unordered_map<const void*, Event> events_ OPENREG_GUARDED_BY(mutex_);
  Captures captures_ OPENREG_GUARDED_BY(mutex_);
  std::vector<Stream> streams_ OPENREG_GUARDED_BY(mutex_);
  std::unordered_map<Stream, StreamNumber> numbers_ OPENREG_GUARDED_BY(mutex_);
  std::vector<WatchedAccess> watched_ OPENREG_GUARDED_BY(mutex_);
  uint64_t first_opened_ OPENREG_GUARDED_BY(mutex_) = 0;  // pages, when it was enabled
  uint64_t last_opened_ OPENREG_GUARDED_BY(mutex_) = 0;   // when it last looked
  Universe live_ OPENREG_GUARDED_BY(mutex_);
  uint64_t last_launch_ OPENREG_GUARDED_BY(mutex_) = 0;
};

// Leaked: memory may be freed by static destructors.
Sanitizer& sanitizer() {
  static Sanitizer* instance = new Sanitizer;
  return *instance;
}

}  // namespace

// --- Control

void setFindingReporter(ReportFinding report) { reporter = report; }

void enableSanitizer(const SanitizerOptions& options) { sanitizer().enable(options); }

void disableSanitizer() { sanitizer().disable(); }

void reportHostTouches() { sanitizer().reportHostTouches(); }

SanitizerCounts sanitizerCounts() { return sanitizer().counts(); }

std::vector<std::pair<std::string, uint64_t>> kernelsNotSeen() { return sanitizer().notSeen(); }

// --- What the backend tells

void recordAccesses(const OpenRegStream& stream, const char* kernel, ArrayRef<Operand> operands) {
  std::vector<Sanitizer::Touch> touches;
  touches.reserve(operands.size());
  int read_count = 0;
  int written_count = 0;
  for (const Operand& operand : operands) {
    const int index = operand.is_written ? written_count++ : read_count++;
    const TensorImpl& tensor = *operand.tensor;
    if (operand.tensor == UndefinedTensorImpl::singleton()) {
      continue;
    }
    const bool is_here = operand.is_host_memory || tensor.device_type() == kDeviceType;
    if (!is_here || !tensor.has_storage() || tensor.layout() != kStrided) {
      continue;
    }
    const auto is_same_written = [&](const Operand& other) {
      return other.tensor == operand.tensor && other.is_written;
    };
    if (!operand.is_written && std::any_of(operands.begin(), operands.end(), is_same_written)) {
      continue;  // it is an output
    }
    Sanitizer::Touch touch{accessOf(operand), reinterpret_cast<uintptr_t>(tensor.storage().data()),
                           tensor.storage().nbytes()};
    touch.access.operand = static_cast<int16_t>(index);
    const bool is_passed_in =
        operand.is_updated || isInPlace(kernel) ||
        std::any_of(operands.begin(), operands.end(), [&](const Operand& other) {
          return other.tensor == operand.tensor && !other.is_written;
        });
    touch.is_read = operand.is_written ? is_passed_in && !onlyWrites(kernel)
                                       : index > 0 || !readsOnlySizes(kernel);
    if (operand.is_written && operand.name == nullptr) {
      const auto* const first_read = std::find_if(
          operands.begin(), operands.end(), [](const Operand& other) { return !other.is_written; });
      if (first_read != operands.end() && first_read->tensor == operand.tensor) {
        touch.access.argument = "self";  // of a call in place
      }
    }
    if (!touch.access.runs.isEmpty()) {
      touches.push_back(std::move(touch));
    }
  }
  has_recorded = true;
  sanitizer().launch(stream, kernel, touches);
}

void recordRange(const OpenRegStream& stream, const char* kernel, const void* address,
                 size_t nbytes, bool is_written) {
  if (nbytes == 0) {
    return;
  }
  const auto begin = reinterpret_cast<uintptr_t>(address);
  std::vector<Sanitizer::Touch> touches(1);
  touches[0].access.runs = ByteRuns(begin, nbytes);
  touches[0].access.is_write = is_written;
  touches[0].storage = begin;
  touches[0].storage_size = nbytes;
  touches[0].is_read = !is_written;
  sanitizer().launch(stream, kernel, touches);
}

void recordMove(const OpenRegStream& stream, const char* kernel, const void* to, const void* from,
                size_t nbytes) {
  if (nbytes == 0) {
    return;
  }
  const bool is_captured = stream.isCapturing();
  std::vector<Sanitizer::Touch> touches;
  for (const bool is_write : {false, true}) {
    const auto begin = reinterpret_cast<uintptr_t>(is_write ? to : from);
    Sanitizer::Touch touch{Access(), begin, nbytes};
    touch.access.runs = ByteRuns(begin, nbytes);
    touch.access.is_write = is_write;
    touch.is_filled = is_captured;  // what it holds is not followed further
    touches.push_back(std::move(touch));
  }
  sanitizer().launch(stream, kernel, touches);
  if (!is_captured) {
    sanitizer().move(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from), nbytes);
  }
}

void recordHostAccesses(const char* kernel, ArrayRef<Operand> operands) {
  std::vector<Sanitizer::Touch> touches;
  for (const Operand& operand : operands) {
    Sanitizer::Touch touch{accessOf(operand), 0, 0};
    if (!touch.access.runs.isEmpty()) {
      touches.push_back(std::move(touch));
    }
  }
  sanitizer().hostAccess(kernel, touches);
}

void notePinnedAllocated(const void* address, size_t size) {
  sanitizer().pinnedAllocated(address, size);
}

void notePinnedCopied(const void* address) { sanitizer().pinnedCopied(address); }

void notePinnedFreed(const void* address) noexcept { sanitizer().pinnedFreed(address); }

void noteLaunch(const char* kernel) {
  if (!std::exchange(has_recorded, false)) {
    sanitizer().countNotSeen(kernel);
  }
}

void noteEventRecorded(const void* event, const OpenRegStream& stream) {
  sanitizer().eventRecorded(event, stream);
}

void noteEventAwaited(const void* event, const OpenRegStream& stream) {
  sanitizer().eventAwaited(event, stream);
}

void noteEventDestroyed(const void* event) { sanitizer().eventDestroyed(event); }

void noteStreamAwaited(const OpenRegStream& stream, const OpenRegStream& other) {
  sanitizer().streamAwaited(stream, other);
}

void noteEventDone(const void* event) { sanitizer().eventDone(event); }

void noteStreamDone(const OpenRegStream& stream) {
  has_recorded = false;  // what was recorded ran on the calling thread
  sanitizer().streamDone(stream);
}

void noteDeviceDone(DeviceIndex device) { sanitizer().deviceDone(device); }

void noteAllocated(const void* address, size_t size, const OpenRegStream& stream,
                   MempoolId_t pool) {
  sanitizer().allocated(address, size, stream, pool);
}

void noteUsedOn(const void* address, const OpenRegStream& stream) {
  sanitizer().usedOn(address, stream);
}

void noteFreed(const void* address, const OpenRegStream& owner, MempoolId_t pool) noexcept {
  sanitizer().freed(address, owner, pool);
}

void noteWritten(const void* address) {
  sanitizer().writtenElsewhere(reinterpret_cast<uintptr_t>(address));
}

void noteCaptureBegun(uint64_t capture, const OpenRegStream& stream) {
  sanitizer().captureBegun(capture, stream);
}

void noteCaptureEnded(uint64_t capture, bool is_valid) noexcept {
  sanitizer().captureEnded(capture, is_valid);
}

void noteRefusedCall(orError_t error, const char* caller) noexcept {
  switch (error) {
    case orErrorStreamCaptureUnsupported:
    case orErrorStreamCaptureMerge:
    case orErrorStreamCaptureUnmatched:
    case orErrorStreamCaptureUnjoined:
    case orErrorStreamCaptureIsolation:
    case orErrorCapturedEvent:
    case orErrorStreamCaptureWrongThread:
      break;
    default:  // orErrorStreamCaptureInvalidated comes after one of these
      return;
  }
  try {
    const OpenRegStream current = getCurrentOpenRegStream();
    sanitizer().refusedCall(error, caller, current, current.captureId());
  } catch (const std::exception& failure) {
    // The error itself is about to be thrown, and is what counts.
    std::fprintf(stderr, "openreg: the sanitizer could not report a call: %s\n", failure.what());
  }
}

void recordReplay(uint64_t capture, const OpenRegStream& stream) {
  sanitizer().replay(capture, stream);
}

void forgetCapture(uint64_t capture) { sanitizer().forgetCapture(capture); }

}  // namespace c10::openreg
