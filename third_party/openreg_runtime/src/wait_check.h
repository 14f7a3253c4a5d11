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

// Gives the calling thread another check for as long as it lives.
class Substitution {
 public:
  explicit Substitution(orWaitCheckFn other);
  Substitution(const Substitution&) = delete;
  Substitution& operator=(const Substitution&) = delete;
  ~Substitution();

 private:
  orWaitCheckFn replaced_;
};

// Suspends the calling thread's check, for waits that have to be waited out.
class Suspension : public Substitution {
 public:
  Suspension() : Substitution(nullptr) {}
};

}  // namespace openreg::wait_check
