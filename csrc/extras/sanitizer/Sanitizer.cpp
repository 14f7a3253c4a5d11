#include "csrc/extras/sanitizer/Sanitizer.h"

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/Clock.h"
#include "csrc/extras/sanitizer/HappensBefore.h"
#include "csrc/extras/sanitizer/LaunchTrace.h"
#include "csrc/extras/sanitizer/MemoryAccess.h"
#include "csrc/extras/sanitizer/Rules.h"
#include "csrc/extras/sanitizer/State.h"
#include "csrc/extras/sanitizer/TraceRules.h"
#include "csrc/extras/sanitizer/WrittenOperands.h"
#include "csrc/extras/sanitizer/host/HostOperators.h"
#include "csrc/extras/sanitizer/host/HostWatch.h"
#include "csrc/extras/sanitizer/host/HostWatches.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Trace.h"

namespace c10::openreg {

namespace {

std::atomic<bool> is_on{false};

std::atomic<ReportFinding> reporter{nullptr};  // set before it is on

// Whether this thread has recorded the accesses of the kernel that it launches next.
thread_local bool has_recorded = false;

// The trace of the kernel whose accesses this thread reports next.
thread_local std::shared_ptr<LaunchTrace> next_trace{};

// Whether there are traces, so that a call need not lock anything if there are none.
std::atomic<bool> has_traces{false};

void report(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    reporter.load(std::memory_order_relaxed)(finding);
  }
}

class Sanitizer;
Sanitizer& sanitizer();

// One lock guards the whole state. Stacks are gathered and findings reported without it.
class Sanitizer final : public Observer {
 public:
  // --- Control

  void enable(const SanitizerOptions& options) {
    const Lock lock(mutex_);
    state_.options = options;
    const bool watches_pages = options.finds_host_accesses && options.watches_pages;
    letHostBeWatched(watches_pages);
    // A child has no record of its parent's work, and another thread may hold the lock at the fork.
    [[maybe_unused]] static const int is_off_in_children =
        pthread_atfork(nullptr, nullptr, [] { sanitizer().turnOff(); });
    if (!isSanitizerOn()) {
      forget();
      state_.counts = {};
      first_opened_ = last_opened_ = countOpenedPages();
    }
    if (!is_on.exchange(true)) {
      addObserver(*this);
    }
  }

  void disable() {
    at::openreg::stopObservingHostOperators();
    if (!turnOff()) {
      return;
    }
    const Lock lock(mutex_);
    letHostBeWatched(false);
    forget();
  }

  SanitizerCounts counts() {
    const Lock lock(mutex_);
    SanitizerCounts counts = state_.countNow();
    counts.pages_opened = countOpenedPages() - first_opened_;
    return counts;
  }

  // --- Launches

  Verdict kernelAccess(const OpenRegStream& stream, const char* kernel, ArrayRef<Operand> operands,
                       bool schema_only) override {
    std::vector<MemoryAccess> accesses = memoryAccessesOf(kernel, operands);
    if (schema_only && !isOfTorch(kernel)) {
      for (MemoryAccess& access : accesses) {
        access.is_read = false;  // unknown
      }
    }
    has_recorded = true;
    launch(stream, kernel, std::move(accesses), std::exchange(next_trace, nullptr));
    return Verdict::Run;
  }

  bool wantsTraces() override {
    const Lock lock(mutex_);
    return state_.options.finds_races || state_.options.finds_uninitialized;
  }

  std::shared_ptr<Trace> kernelTrace(const OpenRegStream& /*stream*/,
                                     const TracedKernel& kernel) override {
    next_trace = wantsTraces() ? std::make_shared<LaunchTrace>(kernel) : nullptr;
    return next_trace;
  }

  Verdict rangeAccess(const OpenRegStream& stream, const char* kernel,
                      ArrayRef<Range> ranges) override {
    std::vector<MemoryAccess> accesses;
    for (const Range& range : ranges) {
      if (range.nbytes == 0) {
        continue;
      }
      // What is unknown counts as read for races. It needs no contents, and has some afterwards.
      const bool is_written =
          range.access == RangeAccess::Written || range.access == RangeAccess::Updated;
      MemoryAccess& access =
          accesses.emplace_back(memoryAccessOf(range.address, range.nbytes, is_written));
      access.is_read = range.access == RangeAccess::Read || range.access == RangeAccess::Updated;
      access.is_unknown = range.access == RangeAccess::Unknown;
    }
    if (!accesses.empty()) {
      launch(stream, kernel, std::move(accesses));
    }
    return Verdict::Run;
  }

  Verdict byteCopy(const OpenRegStream& stream, const char* kernel, const void* to,
                   const void* from, size_t nbytes) override {
    if (nbytes == 0) {
      return Verdict::Run;
    }
    const bool is_captured = stream.isCapturing();
    MemoryAccess written = memoryAccessOf(to, nbytes, true);
    written.is_filled = is_captured;  // its contents are not tracked
    launch(stream, kernel, {memoryAccessOf(from, nbytes, false), std::move(written)});
    if (!is_captured) {
      const Lock lock(mutex_);
      state_.moveWritten(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from),
                         nbytes);
    }
    return Verdict::Run;
  }

  void kernelLaunch(const char* kernel) override {
    if (!std::exchange(has_recorded, false)) {
      const Lock lock(mutex_);
      ++state_.counts.not_seen;
      ++state_.counts.kernels_not_seen[kernel];
      state_.giveUpWritten();  // the graph may have written anything
    }
  }

  void graphReplay(uint64_t capture, const OpenRegStream& stream) override {
    reportLateFindings();
    const Call call{"", gatherStack(), 0, capture};
    std::vector<Finding> findings;
    std::vector<MemoryAccess> memory_accesses;
    {
      const Lock lock(mutex_);
      const auto found = state_.captures.find(capture);
      if (found == state_.captures.end()) {
        return;
      }
      const Launch launch = launchOf(stream, call);
      launch.place.happens_before.clockOf(launch.place.stream).join(found->second.last_replay);
      for (const auto& [key, kept] : found->second.kept) {
        const Allocation& allocation = *kept.allocation;
        if (allocation.is_live || allocation.capture != 0) {
          memory_accesses.push_back({kept.access, allocation.address, allocation.size, kept.is_read,
                                     true, kept.allocation, kept.access.work, kept.is_unknown});
        } else {
          findings.push_back(freedInput(state_, launch, kept));
        }
      }
    }
    settle(stream, call, std::move(memory_accesses), std::move(findings));
  }

  void memoryWrite(const void* address) override {
    const Lock lock(mutex_);
    if (const auto allocation = state_.shadow.find(reinterpret_cast<uintptr_t>(address))) {
      allocation->giveUpWritten();
    }
  }

  // Host accesses to pinned memory. Later launches are ordered after them.
  void hostAccess(const char* kernel, const std::vector<Access>& accesses) {
    reportLateFindings();
    const Stack stack = gatherStack();
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      for (const Access& access : accesses) {
        const auto allocation = state_.shadow.find(access.runs.begin());
        if (allocation == nullptr || !allocation->is_host_memory ||
            !state_.options.finds_host_accesses) {
          continue;
        }
        const Access* const conflicting = findHostConflict(state_, *allocation, access);
        if (conflicting == nullptr) {
          continue;
        }
        const Work& work = *conflicting->work;
        Finding& finding = findings.emplace_back(Finding{FindingKind::Host});
        finding.earlier = describe(state_, *conflicting, allocation->address);
        finding.later = {access, allocation->address, kernel, finding.earlier.stream, stack};
        finding.later.is_host = true;
        finding.allocation = describe(state_, *allocation);
        finding.waited = hostWaitFor(state_, *conflicting);
        // See Note [One finding for each mistake].
        Clock until;
        until.raise(work.stream, work.count);
        hostAwaits(until);
      }
    }
    report(findings);
  }

  void pinnedAllocation(const void* address, size_t size) override {
    Stack stack = gatherStack();
    const Lock lock(mutex_);
    Allocation& allocation = *state_.shadow.add(reinterpret_cast<uintptr_t>(address), size);
    allocation.is_host_memory = true;
    allocation.allocated = std::move(stack);
  }

  void pinnedDeallocation(const void* address) noexcept override {
    std::shared_ptr<Allocation> allocation;  // destroyed without the lock
    bool is_graph_input = false;
    {
      const Lock lock(mutex_);
      allocation = state_.shadow.take(reinterpret_cast<uintptr_t>(address));
      watches_.endFreed(reinterpret_cast<uintptr_t>(address));
      is_graph_input = allocation != nullptr && allocation->is_graph_input;
    }
    if (is_graph_input) {
      const Stack stack = gatherStack();
      const Lock lock(mutex_);
      allocation->freed = stack;
    }
  }

  void pinnedCopy(const void* address) override {
    at::openreg::observeHostOperators();
    const Lock lock(mutex_);
    if (const auto allocation = state_.shadow.find(reinterpret_cast<uintptr_t>(address))) {
      watches_.watch(state_, *allocation);
    }
  }

  // Reports what has shown itself since the last call, without a call of the program: the host's
  // accesses to watched memory, and what traced kernels have done.
  void reportLateFindings() {
    if (!isSanitizerOn()) {
      return;
    }
    if (has_traces.load(std::memory_order_relaxed)) {
      settleTraces();
    }
    if (!HostWatch::isAnyAlive()) {
      return;
    }
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      if (HostWatch::takeAnyTouched()) {
        Clock until;
        findings = watches_.takeTouches(state_, until);
        hostAwaits(until);  // see Note [One finding for each mistake]
      }
      const uint64_t opened = countOpenedPages();
      if (std::exchange(last_opened_, opened) != opened) {
        protectOpenedPages();
      }
    }
    report(findings);
  }

  // --- Graphs

  void captureBegin(uint64_t capture, const OpenRegStream& stream) override {
    Stack stack = gatherStack();
    const Lock lock(mutex_);
    Capture& begun = state_.captures[capture];
    begun.origin = state_.numberOf(stream);
    begun.begun = std::move(stack);
    begun.is_under_way = true;
  }

  void captureEnd(uint64_t capture, bool is_valid) noexcept override {
    const Lock lock(mutex_);
    const auto found = state_.captures.find(capture);
    if (found == state_.captures.end()) {
      return;
    }
    if (!is_valid) {
      state_.forgetGraph(capture);
      return;
    }
    found->second.is_under_way = false;
    found->second.happens_before = HappensBefore();
    found->second.touched.clear();
    found->second.last_work.clear();
  }

  void graphDeletion(uint64_t capture) override {
    const Lock lock(mutex_);
    state_.forgetGraph(capture);
  }

  void callRefusal(orError_t error, const char* caller) noexcept override {
    switch (error) {
      case orErrorStreamCaptureUnsupported:
      case orErrorStreamCaptureMerge:
      case orErrorStreamCaptureUnmatched:
      case orErrorStreamCaptureUnjoined:
      case orErrorStreamCaptureIsolation:
      case orErrorCapturedEvent:
      case orErrorStreamCaptureWrongThread:
        break;
      default:  // orErrorStreamCaptureInvalidated follows one of these
        return;
    }
    try {
      refusedCall(error, caller);
    } catch (const std::exception& failure) {
      // The runtime's error is about to be thrown, and has precedence.
      std::fprintf(stderr, "openreg: the sanitizer could not report a call: %s\n", failure.what());
    }
  }

  // --- Order

  void eventRecord(const void* event, const OpenRegStream& stream) override {
    reportLateFindings();
    const uint64_t capture = stream.captureId();
    const Lock lock(mutex_);
    const LaunchPlace place = state_.placeOf(stream, capture);
    state_.events[event] = {place.stream, place.happens_before.clockOf(place.stream), capture};
  }

  void eventWait(const void* event, const OpenRegStream& stream) override {
    reportLateFindings();
    const Stack stack = gatherStack();
    const uint64_t capture = stream.captureId();
    const Lock lock(mutex_);
    const auto found = state_.events.find(event);
    if (found != state_.events.end() && found->second.capture == capture) {
      const LaunchPlace place = state_.placeOf(stream, capture);
      place.happens_before.await(place.stream, found->second.stream, found->second.clock,
                                 state_.waitOf(stack));
    }
  }

  void streamWait(const OpenRegStream& stream, const OpenRegStream& other) override {
    reportLateFindings();
    const Stack stack = gatherStack();
    const uint64_t capture = other.captureId();  // the wait adds the stream to this capture
    const Lock lock(mutex_);
    const LaunchPlace place = state_.placeOf(stream, capture);
    const StreamNumber awaited = state_.numberOf(other);
    const Clock clock = place.happens_before.clockOf(awaited);
    place.happens_before.await(place.stream, awaited, clock, state_.waitOf(stack));
  }

  void eventDeletion(const void* event) noexcept override {
    const Lock lock(mutex_);
    state_.events.erase(event);
  }

  void eventSynchronization(const void* event) override { eventDone(event); }
  void eventCompletion(const void* event) override { eventDone(event); }
  void streamSynchronization(const OpenRegStream& stream) override {
    has_recorded = false;  // the accesses recorded before were on the calling thread
    streamDone(stream);
  }
  void streamCompletion(const OpenRegStream& stream) override { streamDone(stream); }

  void deviceSynchronization(DeviceIndex device) override {
    reportLateFindings();
    const Stack stack = gatherStack();
    const Lock lock(mutex_);
    state_.device_waits[device] = state_.waitOf(stack);
    for (StreamNumber number = 0; number < state_.streams().size(); ++number) {
      if (state_.streams()[number].device_index() == device) {
        hostAwaits(number, state_.live.clockOf(number), stack);
      }
    }
  }

  // --- Memory

  void memoryAllocation(const void* address, size_t size, size_t /*block_size*/,
                        const OpenRegStream& stream, MempoolId_t pool) override {
    const Call call{"", gatherStack(), stream.captureId(), 0};
    const Lock lock(mutex_);
    state_.addAllocation(launchOf(stream, call), address, size, pool);
  }

  void memoryUse(const void* address, const OpenRegStream& stream) override {
    const Lock lock(mutex_);
    if (const auto allocation = state_.shadow.find(reinterpret_cast<uintptr_t>(address))) {
      allocation->used_on.push_back(state_.numberOf(stream));
    }
  }

  void memoryDeallocation(const void* address, size_t /*size*/, const OpenRegStream& owner,
                          MempoolId_t pool) noexcept override {
    const uint64_t capture = owner.captureId();
    std::shared_ptr<Allocation> allocation;  // destroyed without the lock
    std::vector<Hazard> hazards;
    bool is_graph_input = false;
    {
      const Lock lock(mutex_);
      allocation = state_.shadow.take(reinterpret_cast<uintptr_t>(address));
      // Memory of a graph is reused only within the graph, after the graph itself has freed it.
      if (allocation == nullptr || (allocation->capture != 0 && allocation->capture != capture)) {
        return;
      }
      hazards = state_.hazardsOf(state_.placeOf(owner, allocation->capture), allocation);
      is_graph_input = allocation->is_graph_input;
    }
    // The usual case. The stack would not be shown.
    if (hazards.empty() && !is_graph_input) {
      return;
    }
    const Stack stack = gatherStack();
    for (Hazard& hazard : hazards) {
      hazard.freed = stack;
    }
    const Lock lock(mutex_);
    if (is_graph_input) {
      allocation->freed = stack;
    }
    state_.addHazards(state_.placeOf(owner, allocation->capture), pool, std::move(hazards));
  }

 private:
  // A launch, while the lock is not held.
  struct Call {
    const char* kernel;
    Stack stack;
    uint64_t capture;   // that it is part of, or 0
    uint64_t replayed;  // the capture of the graph that it replays, or 0
    std::shared_ptr<LaunchTrace> trace{};
  };

  Launch launchOf(const OpenRegStream& stream, const Call& call) OPENREG_REQUIRES(mutex_) {
    return {state_.placeOf(stream, call.capture), call.kernel, call.stack, call.replayed};
  }

  void launch(const OpenRegStream& stream, const char* kernel,
              std::vector<MemoryAccess> memory_accesses,
              std::shared_ptr<LaunchTrace> trace = nullptr) {
    reportLateFindings();
    settle(stream, {kernel, gatherStack(), stream.captureId(), 0, std::move(trace)},
           std::move(memory_accesses), {});
  }

  // Reports the findings about the work, and `findings`, and records the work. If a report throws,
  // the work is not recorded.
  void settle(const OpenRegStream& stream, const Call& call,
              std::vector<MemoryAccess> memory_accesses, std::vector<Finding> findings)
      OPENREG_EXCLUDES(mutex_) {
    {
      const Lock lock(mutex_);
      state_.resolve(memory_accesses);
      if (call.trace != nullptr && call.capture == 0) {
        for (MemoryAccess& access : memory_accesses) {
          // The trace tells which bytes are read.
          access.is_read = access.is_read && access.allocation->capture != 0;
        }
      }
      const Launch launch = launchOf(stream, call);
      std::vector<Finding> found = findAll(state_, launch, memory_accesses);
      std::move(found.begin(), found.end(), std::back_inserter(findings));
      if (findings.empty()) {
        commit(launch, memory_accesses, call.trace);
        return;
      }
    }
    report(findings);
    const Lock lock(mutex_);
    const Launch launch = launchOf(stream, call);
    takeAsOrdered(state_, launch, memory_accesses);
    commit(launch, memory_accesses, call.trace);
  }

  void commit(const Launch& launch, std::vector<MemoryAccess>& memory_accesses,
              const std::shared_ptr<LaunchTrace>& trace) OPENREG_REQUIRES(mutex_) {
    if (trace != nullptr) {
      traces_.push_back(trace);
      noteTraces();
      if (launch.place.capture == nullptr) {
        beginTrace(state_, *trace, memory_accesses);
      }
    }
    const std::shared_ptr<const Work> work = state_.commit(launch, memory_accesses);
    if (trace != nullptr) {
      trace->work = work;
    }
    if (launch.replayed != 0) {
      for (const MemoryAccess& memory_access : memory_accesses) {
        if (memory_access.allocation->is_host_memory) {
          watches_.watch(state_, *memory_access.allocation);
        }
      }
    }
  }

  // Takes what traced kernels have done since the last call.
  void settleTraces() OPENREG_EXCLUDES(mutex_) {
    std::vector<Finding> findings;
    std::vector<std::shared_ptr<LaunchTrace>> ended;  // destroyed without the lock
    {
      const Lock lock(mutex_);
      std::vector<std::shared_ptr<LaunchTrace>> kept;
      for (std::shared_ptr<LaunchTrace>& trace : traces_) {
        // Before its results are taken: the launch ends, or its graph, after they are stored.
        const bool is_last = trace.use_count() == 1;
        for (const LaunchTrace::Result& result : trace->take()) {
          std::vector<Finding> found = settleTrace(state_, *trace, result);
          std::move(found.begin(), found.end(), std::back_inserter(findings));
        }
        if (is_last) {
          dropTrace(state_, *trace);
        }
        (is_last ? ended : kept).push_back(std::move(trace));
      }
      traces_ = std::move(kept);
      noteTraces();
    }
    report(findings);
  }

  void noteTraces() OPENREG_REQUIRES(mutex_) {
    state_.keeps_clocks = !traces_.empty();
    has_traces.store(!traces_.empty(), std::memory_order_relaxed);
  }

  void eventDone(const void* event) {
    reportLateFindings();
    const Stack stack = gatherStack();
    const Lock lock(mutex_);
    const auto found = state_.events.find(event);
    if (found != state_.events.end() && found->second.capture == 0) {
      hostAwaits(found->second.stream, found->second.clock, stack);
    }
  }

  void streamDone(const OpenRegStream& stream) {
    reportLateFindings();
    const Stack stack = gatherStack();
    const Lock lock(mutex_);
    const StreamNumber number = state_.numberOf(stream);
    hostAwaits(number, state_.live.clockOf(number), stack);
  }

  // For streams outside of captures: a wait of the program for a stream, or a point of it.
  void hostAwaits(StreamNumber stream, const Clock& clock, const Stack& stack)
      OPENREG_REQUIRES(mutex_) {
    state_.live.noteHostWait(stream, clock, state_.waitOf(stack));
    hostAwaits(clock);
  }

  void hostAwaits(const Clock& clock) OPENREG_REQUIRES(mutex_) {
    state_.live.hostAwaits(clock);
    watches_.endOrdered(state_.live);
  }

  void refusedCall(orError_t error, const char* caller) {
    const OpenRegStream current = getCurrentOpenRegStream();
    const uint64_t own_capture = current.captureId();
    const Stack stack = gatherStack();
    std::vector<Finding> findings;
    {
      const Lock lock(mutex_);
      if (!state_.options.finds_refused_calls) {
        return;
      }
      Capture* const capture = captureUnderWay(own_capture);
      if (error == orErrorStreamCaptureUnjoined && capture != nullptr) {
        findings = findUnjoined(state_, *capture);
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
        if (capture != nullptr) {
          finding.earlier.stream = state_.streams()[capture->origin];
          finding.earlier.stack = capture->begun;
        }
      }
    }
    report(findings);
  }

  // The given capture, or the latest one for 0; null if there is none.
  Capture* captureUnderWay(uint64_t id) OPENREG_REQUIRES(mutex_) {
    std::pair<uint64_t, Capture*> latest{0, nullptr};
    for (auto& [number, capture] : state_.captures) {
      const bool is_meant = id == 0 ? capture.is_under_way && latest.first < number : number == id;
      if (is_meant) {
        latest = {number, &capture};
      }
    }
    return latest.second;
  }

  // Removes it from the observers. Returns whether it was on.
  bool turnOff() noexcept {
    const bool was_on = is_on.exchange(false);
    if (was_on) {
      removeObserver(*this);
    }
    return was_on;
  }

  void forget() OPENREG_REQUIRES(mutex_) {
    state_.forget();
    traces_.clear();
    noteTraces();
    watches_.clear();
  }

  Mutex mutex_;  // before the runtime's lock of watches; else a leaf
  State state_ OPENREG_GUARDED_BY(mutex_);
  HostWatches watches_ OPENREG_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<LaunchTrace>> traces_ OPENREG_GUARDED_BY(mutex_);
  uint64_t first_opened_ OPENREG_GUARDED_BY(mutex_) = 0;  // pages, when it was enabled
  uint64_t last_opened_ OPENREG_GUARDED_BY(mutex_) = 0;   // at the last check
};

// Leaked, because memory may be freed by static destructors.
Sanitizer& sanitizer() {
  static Sanitizer* instance = new Sanitizer;
  return *instance;
}

}  // namespace

// --- Control

bool isSanitizerOn() noexcept { return is_on.load(std::memory_order_relaxed); }

void enableSanitizer(const SanitizerOptions& options, ReportFinding report) {
  reporter = report;
  sanitizer().enable(options);
}

void disableSanitizer() { sanitizer().disable(); }

void reportLateFindings() { sanitizer().reportLateFindings(); }

SanitizerCounts sanitizerCounts() { return sanitizer().counts(); }

void recordHostAccesses(const char* kernel, ArrayRef<Operand> operands) {
  std::vector<Access> accesses;
  for (const Operand& operand : operands) {
    Access access = accessOf(operand);
    if (!access.runs.isEmpty()) {
      accesses.push_back(std::move(access));
    }
  }
  sanitizer().hostAccess(kernel, accesses);
}

}  // namespace c10::openreg
