// The process: what fork() and exit() do to the library.
//
// Note [Exit]
// The library's state is never destroyed, as it lives on the heap or has no destructor, so workers
// and late callers cannot meet a destroyed object. When the process exits, every stream is stopped:
// its worker ends the command it runs and parks, waits end, and what is still queued is leaked. The
// exit waits for running commands, but not longer than max_exit_wait_ns.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace openreg {

// Long enough for any kernel of a usual size to end, short enough that a stuck one does not look
// like a hang of the process.
constexpr int64_t max_exit_wait_ns = 2'000'000'000;

// Locks that a forked child has to find free: the thread that forks holds them meanwhile. They are
// leaves, so their order does not matter. A unit declares one, as a constant that exists from the
// moment that the library is loaded: a process may fork before it uses a device.
class ForkLocks {
 public:
  ForkLocks(void (*lock)(), void (*unlock)());
  ForkLocks(const ForkLocks&) = delete;
  ForkLocks& operator=(const ForkLocks&) = delete;

 private:
  friend struct Fork;

  void (*const lock_)();
  void (*const unlock_)();
  const ForkLocks* const next_;
};

// Observes fork() and exit() from now on, because the process uses devices. Called once.
orError_t watch_process(void (*at_exit)());

// True in a child forked from a process that used a device.
bool is_forked();

// Fails with orErrorForked if is_forked().
orError_t check_not_forked();

// True once exit() has begun.
bool is_exiting();

}  // namespace openreg
