// Wait checks, which can end a wait of the calling thread early. See orSetWaitCheck.
#pragma once

#include <openreg/device.h>

#include <cstdint>
#include <utility>

#include "base/error.h"

namespace openreg::wait_check {

// The interval at which a waiting thread calls its check.
constexpr int64_t interval_ns = 50'000'000;

// The calling thread's check, null if it has none.
inline thread_local constinit orWaitCheckFn check = nullptr;

// The failure of a wait that was ended by a check.
inline orError_t fail_ended_early() {
  return fail(orErrorNotReady, "the wait was ended early, by a check of the thread that waits");
}

// Replaces the calling thread's check during its lifetime.
class Substitution {
 public:
  explicit Substitution(orWaitCheckFn other) : replaced_(std::exchange(check, other)) {}
  Substitution(const Substitution&) = delete;
  Substitution& operator=(const Substitution&) = delete;
  ~Substitution() { check = replaced_; }

 private:
  const orWaitCheckFn replaced_;
};

// Suspends the calling thread's check, for waits that must not end early.
class Suspension : public Substitution {
 public:
  Suspension() : Substitution(nullptr) {}
};

}  // namespace openreg::wait_check
