#include "base/process.h"

#include <atomic>

#include "base/os.h"
#include "base/setting.h"
#include "extras/range.h"
#include "extras/schedule.h"
#include "extras/trace.h"

namespace openreg {
namespace {

ProcessHooks process_hooks;
std::atomic<bool> has_forked{false};
std::atomic<bool> has_begun_exit{false};

void before_fork() { process_hooks.before_fork(); }

void after_fork_in_parent() { process_hooks.after_fork(); }

void after_fork_in_child() {
  process_hooks.after_fork();
  has_forked.store(true, std::memory_order_relaxed);
}

void at_exit() {
  if (is_forked()) return;
  has_begun_exit.store(true);
  process_hooks.at_exit();
}

// Locks of what a child may use whether or not the process has used a device. Each is a leaf, but
// the list of trace buffers, so their order does not matter. Taken from the moment that the library
// is loaded: a process may trace and mark ranges long before it has a device.
void lock_host_state() {
  lock_settings();
  schedule::lock();
  lock_ranges();
  trace::lock_buffers();
}

void unlock_host_state() {
  trace::unlock_buffers();
  unlock_ranges();
  schedule::unlock();
  unlock_settings();
}

[[maybe_unused]] const bool is_host_state_watched =
    os::at_fork(lock_host_state, unlock_host_state, unlock_host_state);

}  // namespace

orError_t watch_process(const ProcessHooks& hooks) {
  process_hooks = hooks;
  if (!os::at_fork(before_fork, after_fork_in_parent, after_fork_in_child)) {
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
