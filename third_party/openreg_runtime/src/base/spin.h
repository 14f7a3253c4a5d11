// Spinning: waiting for another thread's store for a short time before sleeping.
#pragma once

#include <cstdint>

#include "base/os.h"

namespace openreg {

// How long a thread spins for the end of a wait before it sleeps: about the time that falling
// asleep takes. A longer time would take a core from the kernel it waits for.
constexpr int64_t wait_spin_ns = 4'000;

// Checks the condition repeatedly until it holds or the time has passed. Returns whether it holds.
// If that takes long, it yields the processor now and then: with few processors, the thread that it
// waits for may need it.
template <typename Condition>
bool spin_until(Condition&& is_met, int64_t duration_ns) {
  // Checks between two readings of the clock. About a microsecond, a few times the latency of a
  // store.
  constexpr int looks_per_turn = 32;
  // Longer than the time between two operators of a busy host, so that a stream which is kept
  // busy makes no system call.
  constexpr int64_t yields_after_ns = 20'000;
  const int64_t begin = os::now_ns();
  for (int64_t now = begin; now < begin + duration_ns; now = os::now_ns()) {
    for (int look = 0; look < looks_per_turn; ++look) {
      if (is_met()) return true;
      os::relax();
    }
    if (now >= begin + yields_after_ns) os::yield();
  }
  return is_met();
}

}  // namespace openreg
