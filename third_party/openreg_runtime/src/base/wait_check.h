// Wait checks, which can end a wait of the calling thread early. See orSetWaitCheck.
#pragma once

#include <openreg/device.h>

#include <chrono>

#include "base/error.h"

namespace openreg::wait_check {

// The interval at which a waiting thread calls its check.
constexpr std::chrono::milliseconds interval{50};

// The calling thread's check, null if it has none.
orWaitCheckFn current();

// The failure of a wait that was ended by a check.
orError_t fail_ended_early();

// Replaces the calling thread's check during its lifetime.
class Substitution {
 public:
  explicit Substitution(orWaitCheckFn other);
  Substitution(const Substitution&) = delete;
  Substitution& operator=(const Substitution&) = delete;
  ~Substitution();

 private:
  orWaitCheckFn replaced_;
};

// Suspends the calling thread's check, for waits that must not end early.
class Suspension : public Substitution {
 public:
  Suspension() : Substitution(nullptr) {}
};

}  // namespace openreg::wait_check
