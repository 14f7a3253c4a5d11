#include "base/process.h"

#include <atomic>

#include "base/os.h"

namespace openreg {
namespace {

void (*exit_function)() = nullptr;
std::atomic<bool> has_forked{false};
std::atomic<bool> has_begun_exit{false};

// The locks declared last; they refer to those before.
constinit std::atomic<const ForkLocks*> last_locks{nullptr};
// What a fork holds. Another thread may load a library and with it declare more.
thread_local const ForkLocks* held_locks = nullptr;

void become_child() { has_forked.store(true, std::memory_order_relaxed); }

void at_exit() {
  if (is_forked()) return;
  has_begun_exit.store(true);
  exit_function();
}

}  // namespace

struct Fork {
  static void lock_all() {
    held_locks = last_locks.load();
    for (const ForkLocks* locks = held_locks; locks != nullptr; locks = locks->next_) {
      locks->lock_();
    }
  }

  static void unlock_all() {
    for (const ForkLocks* locks = held_locks; locks != nullptr; locks = locks->next_) {
      locks->unlock_();
    }
  }
};

ForkLocks::ForkLocks(void (*lock)(), void (*unlock)())
    : lock_(lock), unlock_(unlock), next_(last_locks.load()) {
  last_locks.store(this);
  [[maybe_unused]] static const bool is_watched =
      os::at_fork(Fork::lock_all, Fork::unlock_all, Fork::unlock_all);
}

orError_t watch_process(void (*at_exit_function)()) {
  exit_function = at_exit_function;
  if (!os::at_fork(nullptr, nullptr, become_child)) {
    return fail(orErrorInitializationError, os::error_text("pthread_atfork"));
  }
  if (!os::at_exit(at_exit)) {
    return fail(orErrorInitializationError, os::error_text("atexit"));
  }
  return orSuccess;
}

bool is_forked() { return has_forked.load(std::memory_order_relaxed); }

orError_t check_not_forked() {
  if (!is_forked()) return orSuccess;
  return fail(orErrorForked,
              "this process was forked from one that had used an openreg device; start it with the "
              "'spawn' method, or fork before the first use");
}

// Sequentially consistent, as worker.cpp needs: a worker says that it runs a command and then
// looks here; the exit sets this and then looks for running commands.
bool is_exiting() { return has_begun_exit.load(); }

}  // namespace openreg
