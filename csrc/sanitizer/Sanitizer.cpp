#include "csrc/sanitizer/Sanitizer.h"

#include <c10/core/UndefinedTensorImpl.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "csrc/core/Mutex.h"
#include "csrc/core/PinnedMemory.h"
#include "csrc/sanitizer/ByteRuns.h"
#include "csrc/sanitizer/Clock.h"
#include "csrc/sanitizer/HostWatch.h"
#include "csrc/sanitizer/Shadow.h"
#include "torch_openreg/core/Sanitizer.h"

namespace c10::openreg {

std::atomic<bool> detail::is_sanitizer_on{false};

namespace {

std::atomic<ReportFinding> reporter{nullptr};

// Whether this thread has told the accesses of the kernel that it launches next.
thread_local bool has_recorded = false;

constexpr size_t kMaxHazards = 4096;  // of a stream and pool

// What freed memory may still be used for; see Note [Hazards].
struct Hazard {
  uint64_t serial;  // of the free
  Access access;
  std::shared_ptr<const Allocation> allocation;
  Stack freed;
};

struct StreamState {
  Stream stream;
  Clock clock;
  uint64_t host_version = 0;  // the version of the host's clock that it knows
};

// A graph's kernels: the last access of each kind to each range.
struct Capture {
  struct Kept {
    Access access;
    uint64_t serial;  // of the allocation
    bool is_of_capture;
    size_t size;
    Stack allocated;
  };
  std::map<std::tuple<uintptr_t, uintptr_t, bool>, Kept> accesses;
  Clock last_replay{};  // the next one waits for it, on whatever stream
};

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
  access.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
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
    shadow_.forEach([&](const Allocation& allocation) {
      ++counts.live_allocations;
      counts.remembered_access += allocation.accesses.size();
    });
    for (const auto& [key, hazards] : hazards_) {
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
  }

  // --- Launches

  struct Touch {
    Access access;
    uintptr_t storage;
    size_t storage_size;
    std::shared_ptr<const Work> captured{};  // of a replay
  };

  void launch(const OpenRegStream& stream, const char* kernel, std::vector<Touch>& touches) {
    reportHostTouches();
    Stack stack = gatherStack();
    const uint64_t capture = stream.captureId();
    if (capture != 0) {
      const Lock lock(mutex_);
      keepForReplay(capture, stream, kernel, std::move(stack), touches);
      return;
    }
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      findings = findConflicts(numberOf(stream), kernel, stack, touches);
      if (findings.empty()) {
        commit(numberOf(stream), kernel, stack, touches);
        return;
      }
    }
    report(findings);
    const Lock lock(mutex_);
    const StreamNumber number = numberOf(stream);
    takeAsOrdered(number, touches);
    commit(number, kernel, stack, touches);
  }

  void replay(uint64_t capture, const OpenRegStream& stream) {
    reportHostTouches();
    Stack stack = gatherStack();
    std::vector<Finding> findings;
    std::vector<Touch> touches;
    {
      const Lock lock(mutex_);
      const auto found = captures_.find(capture);
      if (found == captures_.end()) {
        return;
      }
      const StreamNumber number = numberOf(stream);
      clockOf(number).join(found->second.last_replay);
      for (auto& [key, kept] : found->second.accesses) {
        const Allocation* allocation = shadow_.find(kept.access.runs.begin());
        if (allocation != nullptr && allocation->serial == kept.serial) {
          touches.push_back({kept.access, allocation->address, allocation->size, kept.access.work});
        } else if (!kept.is_of_capture) {
          findings.push_back(freedInput(number, stack, kept));
        }
      }
      std::vector<Finding> conflicts = findConflicts(number, "", stack, touches);
      std::move(conflicts.begin(), conflicts.end(), std::back_inserter(findings));
      if (findings.empty()) {
        commitReplay(capture, number, stack, touches);
        return;
      }
    }
    report(findings);
    const Lock lock(mutex_);
    const StreamNumber number = numberOf(stream);
    takeAsOrdered(number, touches);
    commitReplay(capture, number, stack, touches);
  }

  // The host's own accesses to pinned memory. What is launched later is ordered behind them.
  void hostAccess(const char* kernel, const std::vector<Touch>& touches) {
    reportHostTouches();
    Stack stack = gatherStack();
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      for (const Touch& touch : touches) {
        const Allocation* allocation = shadow_.find(touch.access.runs.begin());
        if (allocation == nullptr || !allocation->is_host_memory || !options_.finds_host_accesses) {
          continue;
        }
        const Access* conflicting = nullptr;
        for (const Access& earlier : allocation->accesses) {
          if ((earlier.is_write || touch.access.is_write) && !isKnownToHost(earlier) &&
              earlier.runs.overlap(touch.access.runs) == Overlap::Yes) {
            conflicting = &earlier;
          }
        }
        if (conflicting == nullptr) {
          continue;
        }
        const Work& work = *conflicting->work;
        Finding finding{FindingKind::Host};
        finding.earlier = describe(*conflicting, streams_[work.stream].stream, work.kernel,
                                   work.stack, work.captured, allocation->address);
        finding.later = describe(touch.access, streams_[work.stream].stream, kernel, stack, {},
                                 allocation->address);
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
    Allocation& allocation = shadow_.add(reinterpret_cast<uintptr_t>(address), size);
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
    if (Allocation* allocation = shadow_.find(reinterpret_cast<uintptr_t>(address))) {
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

  void forgetCapture(uint64_t capture) {
    const Lock lock(mutex_);
    captures_.erase(capture);
  }

  // --- Order

  void eventRecorded(const void* event, const OpenRegStream& stream) {
    reportHostTouches();
    const bool is_captured = stream.captureId() != 0;
    const Lock lock(mutex_);
    if (is_captured) {
      events_.erase(event);
      return;
    }
    events_[event] = std::make_shared<const Clock>(clockOf(numberOf(stream)));
  }

  void eventAwaited(const void* event, const OpenRegStream& stream) {
    reportHostTouches();
    Stack stack = gatherStack();
    const bool is_captured = stream.captureId() != 0;
    const Lock lock(mutex_);
    const auto found = events_.find(event);
    if (found != events_.end() && !is_captured) {
      awaitClock(numberOf(stream), *found->second, stack);
    }
  }

  void streamAwaited(const OpenRegStream& stream, const OpenRegStream& other) {
    reportHostTouches();
    Stack stack = gatherStack();
    const Lock lock(mutex_);
    const Clock clock = clockOf(numberOf(other));
    awaitClock(numberOf(stream), clock, stack);
  }

  void eventDestroyed(const void* event) {
    const Lock lock(mutex_);
    events_.erase(event);
  }

  void eventDone(const void* event) {
    reportHostTouches();
    const Lock lock(mutex_);
    const auto found = events_.find(event);
    if (found != events_.end()) {
      hostAwaits(*found->second);
    }
  }

  void streamDone(const OpenRegStream& stream) {
    reportHostTouches();
    const Lock lock(mutex_);
    hostAwaits(clockOf(numberOf(stream)));
  }

  void deviceDone(DeviceIndex device) {
    reportHostTouches();
    const Lock lock(mutex_);
    for (const StreamState& state : streams_) {
      if (state.stream.device_index() == device) {
        hostAwaits(state.clock);
      }
    }
  }

  // --- Memory

  void allocated(const void* address, size_t size, const OpenRegStream& stream, MempoolId_t pool) {
    Stack stack = gatherStack();
    const bool is_captured = stream.captureId() != 0;
    const Lock lock(mutex_);
    const StreamNumber owner = numberOf(stream);
    Allocation& allocation = shadow_.add(reinterpret_cast<uintptr_t>(address), size);
    allocation.owner = owner;
    allocation.pool = pool;
    allocation.is_of_capture = is_captured;
    allocation.allocated = stack;
    if (!is_captured) {
      // No launch of its own: what the owner has launched so far may still use the memory.
      Access access;
      access.runs = ByteRuns(allocation.address, size);
      access.is_write = true;
      access.is_allocation = true;
      access.work = std::make_shared<const Work>(
          Work{"", owner, clockOf(owner).of(owner), std::move(stack), {}});
      allocation.accesses.push_back(std::move(access));
    }
  }

  void usedOn(const void* address, const OpenRegStream& stream) {
    const Lock lock(mutex_);
    if (Allocation* allocation = shadow_.find(reinterpret_cast<uintptr_t>(address))) {
      allocation->used_on.push_back(numberOf(stream));
    }
  }

  void freed(const void* address, const OpenRegStream& owner, MempoolId_t pool) {
    std::shared_ptr<Allocation> allocation;  // destroyed without the lock
    std::vector<Hazard> hazards;
    {
      const Lock lock(mutex_);
      allocation = shadow_.take(reinterpret_cast<uintptr_t>(address));
      if (allocation == nullptr || allocation->is_of_capture || !options_.finds_lifetimes) {
        return;
      }
      hazards = hazardsOf(allocation, numberOf(owner));
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
    std::vector<Hazard>& known = hazards_[{*allocation->owner, pool}];
    std::move(hazards.begin(), hazards.end(), std::back_inserter(known));
    if (known.size() > kMaxHazards) {
      known.erase(known.begin(), known.begin() + kMaxHazards / 2);
      ++counts_.forgotten;
    }
  }

 private:
  using PoolKey = std::pair<StreamNumber, MempoolId_t>;

  void forget() OPENREG_REQUIRES(mutex_) {
    shadow_.clear();
    watched_.clear();
    hazards_.clear();
    events_.clear();
    waits_.clear();
    captures_.clear();
    streams_.clear();
    numbers_.clear();
    host_ = Clock();
    host_version_ = 0;
  }

  StreamNumber numberOf(const OpenRegStream& stream) OPENREG_REQUIRES(mutex_) {
    const auto [entry, is_new] =
        numbers_.emplace(stream.unwrap(), static_cast<StreamNumber>(streams_.size()));
    if (is_new) {
      streams_.push_back({stream.unwrap(), {}});
    }
    return entry->second;
  }

  Clock& clockOf(StreamNumber stream) OPENREG_REQUIRES(mutex_) { return streams_[stream].clock; }

  void hostAwaits(const Clock& clock) OPENREG_REQUIRES(mutex_) {
    host_.join(clock);
    ++host_version_;
    endWatches([&](const WatchedAccess& one)
                   OPENREG_REQUIRES(mutex_) { return isKnownToHost(one.access); });
  }

  // --- Pages of pinned memory; see HostWatch.h

  // Watches what streams do to the allocation and the host is not ordered behind.
  void watchHost(Allocation& allocation) OPENREG_REQUIRES(mutex_) {
    // It may have been turned off since the caller asked.
    if (!isSanitizerOn() || !options_.finds_host_accesses || !options_.watches_pages) {
      return;
    }
    for (Access& access : allocation.accesses) {
      if (access.is_watched || access.is_allocation || isKnownToHost(access)) {
        continue;
      }
      access.is_watched = true;
      auto watch = std::make_unique<HostWatch>(access.runs, access.is_write);
      if (watch->isWatching()) {
        watched_.push_back({access, allocation.address, describe(allocation), std::move(watch)});
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
      const Stream stream = streams_[work.stream].stream;
      Finding finding{FindingKind::Host};
      finding.earlier =
          describe(one->access, stream, work.kernel, work.stack, work.captured, one->base);
      finding.later.is_write = touch.is_write;
      finding.later.is_host = true;
      finding.later.thread = touch.thread;
      finding.later.stream = stream;
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

  void awaitClock(StreamNumber stream, const Clock& clock, const Stack& stack)
      OPENREG_REQUIRES(mutex_) {
    Clock& own = clockOf(stream);
    for (StreamNumber other = 0; other < clock.size(); ++other) {
      if (other != stream && clock.of(other) > 0) {
        waits_[{stream, other}] = stack;
      }
    }
    own.join(clock);
  }

  // Whether it is ordered before the next work of the stream.
  bool isOrdered(const Access& access, StreamNumber stream) OPENREG_REQUIRES(mutex_) {
    const Work& work = *access.work;
    return work.stream == stream || clockOf(stream).of(work.stream) >= work.count ||
           host_.of(work.stream) >= work.count;
  }

  bool isKnownToHost(const Access& access) OPENREG_REQUIRES(mutex_) {
    return host_.of(access.work->stream) >= access.work->count;
  }

  bool isConflict(const Access& earlier, const Access& later, StreamNumber stream)
      OPENREG_REQUIRES(mutex_) {
    if ((!earlier.is_write && !later.is_write) || isOrdered(earlier, stream) ||
        !(earlier.is_allocation ? options_.finds_lifetimes : options_.finds_races)) {
      return false;
    }
    const Overlap overlap = earlier.runs.overlap(later.runs);
    counts_.undecided += overlap == Overlap::Undecided ? 1 : 0;
    return overlap == Overlap::Yes;
  }

  Allocation& allocationOf(const Touch& touch) OPENREG_REQUIRES(mutex_) {
    Allocation& allocation = shadow_.findOrAdd(touch.storage, touch.storage_size);
    allocation.is_host_memory = allocation.is_host_memory || touch.access.is_host_memory;
    return allocation;
  }

  // --- Finding. Changes nothing but what a repetition would change as well.

  std::vector<Finding> findConflicts(StreamNumber stream, const char* kernel, const Stack& stack,
                                     const std::vector<Touch>& touches) OPENREG_REQUIRES(mutex_) {
    std::vector<Finding> findings;
    for (const Touch& touch : touches) {
      const Allocation& allocation = allocationOf(touch);
      // Of each stream the latest access.
      c10::SmallVector<const Access*, 4> conflicts;
      for (const Access& earlier : allocation.accesses) {
        if (!isConflict(earlier, touch.access, stream)) {
          continue;
        }
        auto* const same = std::find_if(conflicts.begin(), conflicts.end(), [&](const Access* one) {
          return one->work->stream == earlier.work->stream;
        });
        if (same == conflicts.end()) {
          conflicts.push_back(&earlier);
        } else if (!earlier.is_allocation || (*same)->is_allocation) {
          *same = &earlier;
        }
      }
      for (const Access* earlier : conflicts) {
        const bool is_same = std::any_of(
            findings.begin(), findings.end(), [&](const Finding& one) OPENREG_REQUIRES(mutex_) {
              return !one.allocation.is_freed &&
                     one.earlier.is_allocation == earlier->is_allocation &&
                     one.earlier.stream == streams_[earlier->work->stream].stream &&
                     one.earlier.kernel == earlier->work->kernel &&
                     one.earlier.stack.here == earlier->work->stack.here;
            });
        if (!is_same) {
          findings.push_back(conflict(stream, kernel, stack, touch, *earlier, allocation));
        }
      }
      findHazards(stream, kernel, stack, touch, allocation, findings);
    }
    return findings;
  }

  void findHazards(StreamNumber stream, const char* kernel, const Stack& stack, const Touch& touch,
                   const Allocation& allocation, std::vector<Finding>& findings)
      OPENREG_REQUIRES(mutex_) {
    if (!allocation.owner.has_value() || hazards_.empty()) {
      return;
    }
    const auto found = hazards_.find({*allocation.owner, allocation.pool});
    if (found == hazards_.end()) {
      return;
    }
    std::erase_if(found->second, [&](const Hazard& hazard) OPENREG_REQUIRES(mutex_) {
      return isOrdered(hazard.access, *allocation.owner);
    });
    // Of each free and stream the last use, which is the one to wait for.
    for (auto it = found->second.rbegin(); it != found->second.rend(); ++it) {
      const Hazard& hazard = *it;
      if (!isOpen(hazard, stream, touch, allocation)) {
        continue;
      }
      const bool is_same = std::any_of(
          findings.begin(), findings.end(), [&](const Finding& one) OPENREG_REQUIRES(mutex_) {
            return one.allocation.is_freed && one.allocation.freed.here == hazard.freed.here &&
                   one.earlier.stream == streams_[hazard.access.work->stream].stream;
          });
      if (is_same) {
        continue;
      }
      Finding finding = conflict(stream, kernel, stack, touch, hazard.access, *hazard.allocation);
      finding.kind = FindingKind::Lifetime;
      finding.allocation.is_freed = true;
      finding.allocation.freed = hazard.freed;
      finding.reused = describe(allocation);
      finding.later.offset = static_cast<int64_t>(touch.access.runs.begin() - allocation.address);
      findings.push_back(std::move(finding));
    }
    if (found->second.empty()) {
      hazards_.erase(found);
    }
  }

  // Whether the work is the first that the hazard can harm.
  bool isOpen(const Hazard& hazard, StreamNumber stream, const Touch& touch,
              const Allocation& allocation) OPENREG_REQUIRES(mutex_) {
    if (allocation.serial <= hazard.serial || isOrdered(hazard.access, stream)) {
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
      report.stream = streams_[*allocation.owner].stream;
    }
    report.is_host_memory = allocation.is_host_memory;
    report.allocated = allocation.allocated;
    return report;
  }

  AccessReport describe(const Access& access, const Stream& stream, const char* kernel,
                        const Stack& stack, const Stack& captured, uintptr_t base) {
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
    report.sizes.assign(access.sizes.begin(), access.sizes.end());
    report.stack = stack;
    report.captured = captured;
    return report;
  }

  AccessReport describeLater(StreamNumber stream, const char* kernel, const Stack& stack,
                             const Touch& touch, uintptr_t base) OPENREG_REQUIRES(mutex_) {
    const Stream c10_stream = streams_[stream].stream;
    if (touch.captured == nullptr) {
      return describe(touch.access, c10_stream, kernel, stack, {}, base);
    }
    return describe(touch.access, c10_stream, touch.captured->kernel, stack, touch.captured->stack,
                    base);
  }

  Finding conflict(StreamNumber stream, const char* kernel, const Stack& stack, const Touch& touch,
                   const Access& earlier, const Allocation& allocation) OPENREG_REQUIRES(mutex_) {
    Finding finding{earlier.is_allocation ? FindingKind::Lifetime : FindingKind::Race};
    const Work& work = *earlier.work;
    finding.earlier = describe(earlier, streams_[work.stream].stream, work.kernel, work.stack,
                               work.captured, allocation.address);
    finding.later = describeLater(stream, kernel, stack, touch, allocation.address);
    finding.allocation = describe(allocation);
    if (const auto wait = waits_.find({stream, work.stream}); wait != waits_.end()) {
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
    finding.earlier =
        describe(kept.access, streams_[work.stream].stream, work.kernel, work.stack, {}, base);
    finding.later =
        describe(kept.access, streams_[stream].stream, work.kernel, stack, work.stack, base);
    finding.allocation.size = kept.size;
    finding.allocation.allocated = kept.allocated;
    return finding;
  }

  static void report(const std::vector<Finding>& findings) {
    if (const ReportFinding report = reporter.load(std::memory_order_relaxed)) {
      for (const Finding& finding : findings) {
        report(finding);
      }
    }
  }

  // Of memory that has been freed: what its owner is not ordered behind and has not been told of.
  std::vector<Hazard> hazardsOf(const std::shared_ptr<Allocation>& allocation, StreamNumber owner)
      OPENREG_REQUIRES(mutex_) {
    allocation->owner = owner;
    std::vector<Hazard> hazards;
    for (const Access& access : allocation->accesses) {
      const StreamNumber user = access.work->stream;
      const bool is_announced =
          std::count(allocation->used_on.begin(), allocation->used_on.end(), user) > 0;
      if (!access.is_allocation && !is_announced && !isOrdered(access, owner)) {
        hazards.push_back({shadow_.serial(), access, allocation, {}});
      }
    }
    return hazards;
  }

  // See Note [One finding for each mistake].
  void takeAsOrdered(StreamNumber stream, const std::vector<Touch>& touches)
      OPENREG_REQUIRES(mutex_) {
    // The hazards first: what is open depends on what is ordered.
    for (const Touch& touch : touches) {
      const Allocation& allocation = allocationOf(touch);
      const auto found = allocation.owner.has_value()
                             ? hazards_.find({*allocation.owner, allocation.pool})
                             : hazards_.end();
      if (found != hazards_.end()) {
        std::erase_if(found->second, [&](const Hazard& hazard) OPENREG_REQUIRES(mutex_) {
          return isOpen(hazard, stream, touch, allocation);
        });
      }
    }
    for (const Touch& touch : touches) {
      for (const Access& earlier : allocationOf(touch).accesses) {
        if (isConflict(earlier, touch.access, stream)) {
          clockOf(stream).raise(earlier.work->stream, earlier.work->count);
        }
      }
    }
  }

  // --- Remembering

  void commit(StreamNumber stream, const char* kernel, const Stack& stack,
              std::vector<Touch>& touches) OPENREG_REQUIRES(mutex_) {
    StreamState& state = streams_[stream];
    if (state.host_version != host_version_) {
      state.clock.join(host_);
      state.host_version = host_version_;
    }
    const LaunchCount count = state.clock.of(stream) + 1;
    state.clock.raise(stream, count);
    ++counts_.launches;
    const auto work = std::make_shared<const Work>(Work{kernel, stream, count, stack, {}});
    for (Touch& touch : touches) {
      if (touch.captured != nullptr) {
        touch.access.work = std::make_shared<const Work>(
            Work{touch.captured->kernel, stream, count, stack, touch.captured->stack});
      } else {
        touch.access.work = work;
      }
      Allocation& allocation = allocationOf(touch);
      std::erase_if(allocation.accesses, [&](const Access& old) OPENREG_REQUIRES(mutex_) {
        return Allocation::isReplaced(old, touch.access) && isOrdered(old, stream);
      });
      counts_.forgotten += allocation.add(std::move(touch.access)) ? 1 : 0;
    }
  }

  void commitReplay(uint64_t capture, StreamNumber stream, const Stack& stack,
                    std::vector<Touch>& touches) OPENREG_REQUIRES(mutex_) {
    commit(stream, "", stack, touches);
    for (const Touch& touch : touches) {
      if (Allocation& allocation = allocationOf(touch); allocation.is_host_memory) {
        watchHost(allocation);
      }
    }
    if (const auto found = captures_.find(capture); found != captures_.end()) {
      found->second.last_replay = clockOf(stream);
    }
  }

  void keepForReplay(uint64_t number, const OpenRegStream& stream, const char* kernel, Stack stack,
                     std::vector<Touch>& touches) OPENREG_REQUIRES(mutex_) {
    Capture& capture = captures_[number];
    const auto work =
        std::make_shared<const Work>(Work{kernel, numberOf(stream), 0, std::move(stack), {}});
    for (Touch& touch : touches) {
      const Allocation& allocation = allocationOf(touch);
      touch.access.work = work;
      const auto key = std::make_tuple(touch.access.runs.begin(), touch.access.runs.end(),
                                       touch.access.is_write);
      capture.accesses.insert_or_assign(
          key, Capture::Kept{std::move(touch.access), allocation.serial, allocation.is_of_capture,
                             allocation.size, allocation.allocated});
    }
  }

  Mutex mutex_;  // before the runtime's lock of watches; else a leaf
  SanitizerOptions options_ OPENREG_GUARDED_BY(mutex_);
  SanitizerCounts counts_ OPENREG_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> not_seen_ OPENREG_GUARDED_BY(mutex_);
  Shadow shadow_ OPENREG_GUARDED_BY(mutex_);
  std::map<PoolKey, std::vector<Hazard>> hazards_ OPENREG_GUARDED_BY(mutex_);
  std::unordered_map<const void*, std::shared_ptr<const Clock>> events_ OPENREG_GUARDED_BY(mutex_);
  // Where the first stream last waited for work of the second.
  std::map<std::pair<StreamNumber, StreamNumber>, Stack> waits_ OPENREG_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Capture> captures_ OPENREG_GUARDED_BY(mutex_);
  std::vector<StreamState> streams_ OPENREG_GUARDED_BY(mutex_);
  std::unordered_map<Stream, StreamNumber> numbers_ OPENREG_GUARDED_BY(mutex_);
  std::vector<WatchedAccess> watched_ OPENREG_GUARDED_BY(mutex_);
  uint64_t first_opened_ OPENREG_GUARDED_BY(mutex_) = 0;  // pages, when it was enabled
  uint64_t last_opened_ OPENREG_GUARDED_BY(mutex_) = 0;   // when it last looked
  Clock host_ OPENREG_GUARDED_BY(mutex_);
  uint64_t host_version_ OPENREG_GUARDED_BY(mutex_) = 0;
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
    const auto is_same = [&](const Operand& other) {
      return other.tensor == operand.tensor && other.is_written;
    };
    if (!operand.is_written && std::any_of(operands.begin(), operands.end(), is_same)) {
      continue;  // it is an output
    }
    Sanitizer::Touch touch{accessOf(operand), reinterpret_cast<uintptr_t>(tensor.storage().data()),
                           tensor.storage().nbytes()};
    touch.access.operand = index;
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
  sanitizer().launch(stream, kernel, touches);
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

void recordReplay(uint64_t capture, const OpenRegStream& stream) {
  sanitizer().replay(capture, stream);
}

void forgetCapture(uint64_t capture) { sanitizer().forgetCapture(capture); }

}  // namespace c10::openreg
