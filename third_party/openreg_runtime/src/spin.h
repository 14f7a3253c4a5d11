// Spinning: looking for another thread's store for a short time, before sleeping.
#pragma once

#include <cstdint>

#include "os.h"

namespace openreg {

// Looks whether the condition holds, again and again, until it does or the time is over. Returns
// whether it does. When that takes long, it offers its processor to other threads now and then:
// with few processors, the thread we wait for may be one of them.
template <typename Condition>
bool spin_until(Condition&& is_met, int64_t duration_ns) {
  // Between two looks at the clock. About a microsecond, a few times what a store takes to arrive.
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
