#include "csrc/extras/profiler/TraceClock.h"

#include <c10/util/ApproximateClock.h>
#include <openreg/trace.h>

#include <limits>

#include "torch_openreg/core/Exception.h"

namespace at::openreg {
namespace {

// Enough for one pair of readings without an interruption between them.
constexpr int kReadings = 16;

}  // namespace

int64_t runtimeTimeNs() {
  int64_t now_ns = 0;
  OPENREG_CHECK(orTraceGetTime(&now_ns));
  return now_ns;
}

TraceClock TraceClock::measure() {
  TraceClock clock;
  int64_t smallest_gap_ns = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kReadings; ++i) {
    const int64_t before_ns = runtimeTimeNs();
    const int64_t epoch_ns = c10::getTime();
    const int64_t gap_ns = runtimeTimeNs() - before_ns;
    if (gap_ns < smallest_gap_ns) {
      smallest_gap_ns = gap_ns;
      clock.offset_ns_ = epoch_ns - (before_ns + gap_ns / 2);
    }
  }
  return clock;
}

}  // namespace at::openreg
