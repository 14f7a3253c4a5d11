#include "timeline.h"

#include <algorithm>

#include "mutex.h"
#include "spin.h"
#include "wait_check.h"

namespace openreg {
namespace {

// How long a thread looks for the end of a wait before it sleeps: about the time in which it
// would fall asleep. Longer would take a core from the kernel it waits for.
constexpr int64_t wait_spin_ns = 4'000;

}  // namespace

void Timeline::retire() {
  bool wakes = false;
  {
    const Lock lock(mutex_);
    const uint64_t count = retired_.load(std::memory_order_relaxed) + 1;
    retired_.store(count, std::memory_order_release);
    wakes = count >= wake_count_;
    if (wakes) wake_count_ = nobody_waits;
  }
  if (wakes) changed_.notify_all();
}

// docs: timeline-wait
Timeline::WaitEnd Timeline::wait(uint64_t count) {
  if (spin_until([&] { return retired() >= count; }, wait_spin_ns)) return WaitEnd::Retired;
  const orWaitCheckFn ends_early = wait_check::current();
  Lock lock(mutex_);
  while (retired_.load(std::memory_order_relaxed) < count) {
    if (is_stopped_) return WaitEnd::Stopped;
    wake_count_ = std::min(wake_count_, count);
    if (ends_early == nullptr) {
      lock.wait(changed_);
      continue;
    }
    if (lock.wait_for(changed_, wait_check::interval)) continue;
    lock.unlock();
    const bool is_ended = ends_early() != 0;
    lock.lock();
    if (is_ended) return WaitEnd::EndedEarly;
  }
  return WaitEnd::Retired;
}
// docs: end

void Timeline::stop() {
  {
    const Lock lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace openreg
