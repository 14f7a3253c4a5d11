// Converts between the runtime's clock and Kineto's.
#pragma once

#include <cstdint>

namespace at::openreg {

// The runtime's time, in nanoseconds of the machine's monotonic clock.
int64_t runtimeTimeNs();

// Converts the runtime's times to Kineto's, which are nanoseconds since the Unix epoch. Both clocks
// are adjusted in the same way, so one offset is valid for a session.
class TraceClock {
 public:
  // Measures the offset.
  static TraceClock measure();

  int64_t toEpochNs(int64_t runtime_ns) const { return runtime_ns + offset_ns_; }

 private:
  int64_t offset_ns_ = 0;
};

}  // namespace at::openreg
