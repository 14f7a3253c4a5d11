#include "timeline.h"

#include <algorithm>

#include "mutex.h"
#include "spin.h"

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
bool Timeline::wait(uint64_t count) {
  if (spin_until([&] { return retired() >= count; }, wait_spin_ns)) return true;
  Lock lock(mutex_);
  while (retired_.load(std::memory_order_relaxed) < count) {
    if (is_stopped_) return false;
    wake_count_ = std::min(wake_count_, count);
    lock.wait(changed_);
  }
  return true;
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
