#include "csrc/extras/sanitizer/host/HostWatches.h"

#include <algorithm>
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

std::vector<HostWatches::Watched> HostWatches::takeTouched() {
  std::vector<Watched> touched;
  std::erase_if(watched_, [&](Watched& one) {
    const bool is_touched = one.watch->isTouched();
    if (is_touched) {
      one.watch->end();
      touched.push_back(std::move(one));
    }
    return is_touched;
  });
  return touched;
}

std::vector<Finding> HostWatches::takeTouches(const State& state, Clock& until) {
  const std::vector<Watched> touched = takeTouched();
  const auto place = [](const Watched& one) {
    const HostTouch& touch = one.watch->touch();
    return std::make_tuple(touch.address, touch.thread, one.access.work->stream);
  };
  std::map<decltype(place(touched.front())), const Watched*> latest;
  for (const Watched& one : touched) {
    const Watched*& known = latest[place(one)];
    if (known == nullptr || known->access.work->count < one.access.work->count) {
      known = &one;
    }
  }
  std::vector<const Watched*> in_order;
  for (const auto& [key, one] : latest) {
    in_order.push_back(one);
  }
  std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    return a->watch->touch().order < b->watch->touch().order;
  });
  std::vector<Finding> findings;
  for (const Watched* one : in_order) {
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
    until.raise(one->access.work->stream, one->access.work->count);
  }
  return findings;
}

}  // namespace c10::openreg
