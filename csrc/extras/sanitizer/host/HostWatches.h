// The accesses of streams to pinned memory whose pages are watched; see HostWatch.h.
//
// Not thread-safe, as State is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/extras/sanitizer/AccessSet.h"
#include "csrc/extras/sanitizer/Clock.h"
#include "csrc/extras/sanitizer/Finding.h"
#include "csrc/extras/sanitizer/Shadow.h"
#include "csrc/extras/sanitizer/State.h"
#include "csrc/extras/sanitizer/host/HostWatch.h"

namespace c10::openreg {

class HostWatches {
 public:
  // Watches the accesses of streams to the allocation that the host is not ordered after.
  void watch(State& state, Allocation& allocation);

  // Ends the watches that are no longer needed, except for those with a touch to report.
  void endOrdered(const HappensBefore& happens_before);
  void endFreed(uintptr_t address);

  // One finding for each line of host code and stream, about the latest copy. `until` is raised to
  // the launches that the findings are about.
  std::vector<Finding> takeTouches(const State& state, Clock& until);

  void clear() { watched_.clear(); }

 private:
  // A watch, and the data for its finding.
  struct Watched {
    Access access;
    uintptr_t base;  // of the allocation
    AllocationReport allocation;
    std::unique_ptr<HostWatch> watch;
  };

  std::vector<Watched> watched_{};
};

}  // namespace c10::openreg
