#include "csrc/extras/sanitizer/TraceRules.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "csrc/extras/sanitizer/Rules.h"

namespace c10::openreg {

namespace {

const char* textAt(const std::vector<std::string>& texts, int32_t index) {
  return index >= 0 && static_cast<size_t>(index) < texts.size() ? texts[index].c_str() : "";
}

Access accessOf(const LaunchTrace& trace, const TracedAccess& traced, const ByteRuns& runs) {
  Access access;
  access.work = trace.work;
  access.runs = runs;
  access.argument = textAt(trace.kernel().arguments, traced.argument);
  access.is_write = traced.kind != TracedAccessKind::Read;
  auto& programs = trace.work->details->programs;
  programs.push_back({traced.program, textAt(trace.kernel().places, traced.place),
                      traced.kind == TracedAccessKind::Atomic});
  access.program_number = static_cast<uint32_t>(programs.size());
  return access;
}

AccessReport reportOf(const State& state, const LaunchTrace& trace, const TracedAccess& traced,
                      const Allocation* allocation) {
  const uintptr_t base = allocation == nullptr ? traced.address : allocation->address;
  return describe(state, accessOf(trace, traced, ByteRuns(traced.address, traced.nbytes)), base);
}

// The allocation as it was at the launch.
std::shared_ptr<Allocation> allocationAt(const State& state, LaunchTrace& trace,
                                         uintptr_t address) {
  for (const LaunchTrace::Memory& memory : trace.memories()) {
    if (address >= memory.begin && address < memory.end) {
      return memory.allocation;
    }
  }
  return state.shadow.find(address);
}

// Whether the work of one access was launched after the other one, and its stream was ordered after
// that. What is not known counts as ordered.
bool isOrderedAfter(const Access& later, const Access& earlier) {
  return later.work->clock() == nullptr ||
         later.work->clock()->of(earlier.work->stream) >= earlier.work->count;
}

// An access outside of the launch's tensors, and what other streams do there.
void findOutside(State& state, const Allocation& allocation, const Access& access,
                 std::vector<Finding>& findings) {
  for (const Access* other : allocation.accesses.near(access.runs)) {
    if (other->is_allocation || (!other->is_write && !access.is_write) ||
        other->work->stream == access.work->stream ||
        other->runs.overlap(access.runs) != Overlap::Yes) {
      continue;
    }
    const bool is_after = other->work->serial > access.work->serial;
    const Access& later = is_after ? *other : access;
    const Access& earlier = is_after ? access : *other;
    if (isOrderedAfter(later, earlier)) {
      continue;
    }
    Finding& finding = findings.emplace_back(Finding{FindingKind::Race});
    finding.earlier = describe(state, earlier, allocation.address);
    finding.later = describe(state, later, allocation.address);
    finding.allocation = describe(state, allocation);
    finding.is_late = true;
    // See Note [One finding for each mistake].
    state.live.clockOf(later.work->stream).raise(earlier.work->stream, earlier.work->count);
    return;
  }
}

}  // namespace

void beginTrace(State& state, LaunchTrace& trace, std::vector<MemoryAccess>& memory_accesses) {
  auto& memories = trace.memories();
  for (MemoryAccess& memory_access : memory_accesses) {
    auto memory = std::find_if(memories.begin(), memories.end(),
                               [&](const auto& one) { return one.begin == memory_access.storage; });
    if (memory == memories.end()) {
      const uintptr_t end = memory_access.storage + memory_access.storage_size;
      memory = memories.insert(memories.end(),
                               {memory_access.allocation, memory_access.storage, end, {}, nullptr});
      Allocation& allocation = *memory_access.allocation;
      memory->is_pending = state.beginTrace(allocation);
      if (memory->is_pending && allocation.written != nullptr) {
        memory->written = std::make_unique<WrittenBytes>(*allocation.written);
      }
    }
    memory_access.is_traced = memory->is_pending;
    memory->views.push_back({memory_access.access.runs, memory_access.access.is_write});
  }
}

void dropTrace(State& state, LaunchTrace& trace) {
  for (LaunchTrace::Memory& memory : trace.memories()) {
    if (std::exchange(memory.is_pending, false)) {
      state.endTrace(*memory.allocation, {}, false);
    }
  }
}

std::vector<Finding> settleTrace(State& state, LaunchTrace& trace,
                                 const LaunchTrace::Result& result) {
  std::vector<Finding> findings;
  if (state.options.finds_races) {
    for (const ProgramRace& race : result.races) {
      const auto allocation = allocationAt(state, trace, race.later.address);
      Finding& finding = findings.emplace_back(Finding{FindingKind::Race});
      finding.earlier = reportOf(state, trace, race.earlier, allocation.get());
      finding.later = reportOf(state, trace, race.later, allocation.get());
      if (allocation != nullptr) {
        finding.allocation = describe(state, *allocation);
      }
      finding.is_late = true;
    }
  }
  for (const TracedAccess& read : result.unwritten) {
    const auto allocation = allocationAt(state, trace, read.address);
    Finding& finding = findings.emplace_back(Finding{FindingKind::Uninitialized});
    finding.later = reportOf(state, trace, read, allocation.get());
    finding.allocation = describe(state, *allocation);
    finding.unwritten = static_cast<int64_t>(read.address - allocation->address);
    finding.earlier.access.is_allocation = true;
    finding.earlier.stream = finding.allocation.stream.value_or(finding.later.stream);
    finding.earlier.stack = allocation->allocated;
    finding.is_late = true;
  }
  state.counts.undecided += result.has_more ? 1 : 0;
  auto& memories = trace.memories();
  for (size_t index = 0; index < memories.size(); ++index) {
    Allocation& allocation = *memories[index].allocation;
    for (const LaunchTrace::Extents& extents : result.outside.at(index)) {
      for (const auto& [begin, extent] : extents) {
        Access access = accessOf(trace, extent.first, ByteRuns(begin, extent.end - begin));
        if (allocation.is_live && state.options.finds_races) {
          findOutside(state, allocation, access, findings);
          state.counts.forgotten += allocation.accesses.add(std::move(access)) ? 1 : 0;
        }
      }
    }
    if (memories[index].is_pending) {
      state.endTrace(allocation, result.written.at(index), result.is_complete);
      memories[index].is_pending = false;
    }
  }
  return findings;
}

}  // namespace c10::openreg
