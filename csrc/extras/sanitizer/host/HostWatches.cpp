#include "csrc/extras/sanitizer/host/HostWatches.h"

#include <map>
#include <tuple>
#include <utility>

#include "csrc/extras/sanitizer/Rules.h"
#include "csrc/extras/sanitizer/Sanitizer.h"

namespace c10::openreg {

void HostWatches::watch(State& state, Allocation& allocation) {
  // The sanitizer may have been turned off since the caller's check.
  if (!isSanitizerOn() || !state.options.finds_host_accesses || !state.options.watches_pages) {
    return;
  }
  allocation.accesses.forEach([&](const Access& access) {
    if (access.is_watched || access.is_allocation || state.live.isKnownToHost(access)) {
      return;
    }
    access.is_watched = true;
    auto watch = std::make_unique<HostWatch>(access.runs, access.is_write);
    if (watch->isWatching()) {
      watched_.push_back(
          {access, allocation.address, describe(state, allocation), std::move(watch)});
    } else {
      ++state.counts.copies_not_watched;
    }
  });
}

void HostWatches::endOrdered(const HappensBefore& happens_before) {
  std::erase_if(watched_, [&](Watched& one) {
    return happens_before.isKnownToHost(one.access) && !one.watch->end();
  });
}

void HostWatches::endFreed(uintptr_t address) {
  std::erase_if(watched_, [&](Watched& one) { return one.base == address && !one.watch->end(); });
}

std::vector<Finding> HostWatches::takeTouches(const State& state, Clock& until) {
  std::map<std::tuple<uintptr_t, int, StreamNumber>, Watched> latest;
  std::erase_if(watched_, [&](Watched& one) {
    if (!one.watch->isTouched()) {
      return false;
    }
    one.watch->end();
    const HostTouch& touch = one.watch->touch();
    Watched& known = latest[{touch.address, touch.thread, one.access.work->stream}];
    if (known.watch == nullptr || known.access.work->count < one.access.work->count) {
      known = std::move(one);
    }
    return true;
  });
  std::map<uint64_t, const Watched*> in_order;
  for (const auto& [place, one] : latest) {
    in_order.emplace(one.watch->touch().order, &one);
  }
  std::vector<Finding> findings;
  for (const auto& [order, one] : in_order) {
    const HostTouch& touch = one->watch->touch();
    Finding& finding = findings.emplace_back(Finding{FindingKind::Host});
    finding.earlier = describe(state, one->access, one->base);
    finding.later.access.runs = ByteRuns(touch.address, 1);
    finding.later.access.is_write = touch.is_write;
    finding.later.base = one->base;
    finding.later.is_host = true;
    finding.later.thread = touch.thread;
    finding.later.stream = finding.earlier.stream;
    finding.later.stack = touch.stack();
    finding.allocation = one->allocation;
    finding.waited = hostWaitFor(state, one->access);
    until.raise(one->access.work->stream, one->access.work->count);
  }
  return findings;
}

}  // namespace c10::openreg
