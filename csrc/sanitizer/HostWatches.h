// The accesses of streams to pinned memory whose pages are watched; see HostWatch.h.
//
// Not thread-safe, as State is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/sanitizer/AccessSet.h"
#include "csrc/sanitizer/Clock.h"
#include "csrc/sanitizer/Finding.h"
#include "csrc/sanitizer/HostWatch.h"
#include "csrc/sanitizer/Shadow.h"
#include "csrc/sanitizer/State.h"

namespace c10::openreg {

class HostWatches {
 public:
  // Watches what streams do to the allocation and the host is not ordered behind.
  void watch(State& state, Allocation& allocation);

  // End the watches that are of no use any more, but for those with a touch to report.
  void endOrdered(const Universe& universe);
  void endFreed(uintptr_t address);

  // One finding for each place of the host and stream, about the latest copy. `until` is raised to
  // what the findings are about.
  std::vector<Finding> takeTouches(const State& state, Clock& until);

  void clear() { watched_.clear(); }

 private:
  // With what a finding tells of it.
  struct Watched {
    Access access;
    uintptr_t base;  // of the allocation
    AllocationReport allocation;
    std::unique_ptr<HostWatch> watch;
  };

  std::vector<Watched> takeTouched();

  std::vector<Watched> watched_{};
};

}  // namespace c10::openreg
