// Wait checks: what may end a wait of the calling thread early. See orSetWaitCheck.
#pragma once

#include <openreg/device.h>

#include <chrono>

#include "error.h"

namespace openreg::wait_check {

// How long a thread that has a check waits before it asks.
constexpr std::chrono::milliseconds interval{50};

// The calling thread's check, null if it has none.
orWaitCheckFn current();

// The failure of a wait that a check has ended.
orError_t fail_ended_early();

// Suspends the calling thread's check, for waits that have to be waited out.
class Suspension {
 public:
  Suspension();
  Suspension(const Suspension&) = delete;
  Suspension& operator=(const Suspension&) = delete;
  ~Suspension();

 private:
  orWaitCheckFn suspended_;
};

}  // namespace openreg::wait_check
