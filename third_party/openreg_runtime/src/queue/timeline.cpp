#include "queue/timeline.h"

#include <limits>

#include "base/mutex.h"
#include "base/spin.h"
#include "base/wait_check.h"

namespace openreg {

void Timeline::retire() {
  Waiter* done = nullptr;
  {
    const Lock lock(mutex_);
    const uint64_t count = retired_.load(std::memory_order_relaxed) + 1;
    retired_.store(count, std::memory_order_release);
    done = take(count);
  }
  wake(done);
}

// docs: timeline-wait
Timeline::WaitEnd Timeline::wait(uint64_t count) {
  if (spin_until([&] { return retired() >= count; }, wait_spin_ns)) return WaitEnd::Retired;
  const orWaitCheckFn ends_early = wait_check::check;
  Waiter waiter{count};
  {
    const Lock lock(mutex_);
    if (retired_.load(std::memory_order_relaxed) >= count) return WaitEnd::Retired;
    if (is_stopped_) return WaitEnd::Stopped;
    add(waiter);
  }
  bool is_ended = false;
  while (waiter.is_woken.load(std::memory_order_acquire) == 0) {
    // If the wait has been ended, another thread is about to wake this one.
    const bool asks = ends_early != nullptr && !is_ended;
    const int64_t duration_ns = asks ? wait_check::interval_ns : os::no_time_limit;
    if (os::sleep_while(waiter.is_woken, 0, duration_ns) || !asks) continue;
    is_ended = ends_early() != 0;
    if (!is_ended) continue;
    const Lock lock(mutex_);
    if (!waiter.is_listed) continue;
    remove(waiter);
    break;
  }
  if (is_ended) return WaitEnd::EndedEarly;
  return retired() >= count ? WaitEnd::Retired : WaitEnd::Stopped;
}
// docs: end

void Timeline::stop() {
  Waiter* all = nullptr;
  {
    const Lock lock(mutex_);
    is_stopped_ = true;
    all = take(std::numeric_limits<uint64_t>::max());
  }
  wake(all);
}

void Timeline::add(Waiter& waiter) {
  Waiter* after = nullptr;  // the next one in the list, null at the end
  if (last_ != nullptr && last_->count > waiter.count) {
    after = first_;
    while (after->count <= waiter.count) after = after->next;
  }
  waiter.next = after;
  waiter.previous = after == nullptr ? last_ : after->previous;
  (waiter.previous == nullptr ? first_ : waiter.previous->next) = &waiter;
  (after == nullptr ? last_ : after->previous) = &waiter;
  waiter.is_listed = true;
}

void Timeline::remove(Waiter& waiter) {
  (waiter.previous == nullptr ? first_ : waiter.previous->next) = waiter.next;
  (waiter.next == nullptr ? last_ : waiter.next->previous) = waiter.previous;
  waiter.is_listed = false;
}

// Removes the waiters for that count or less from the list, and returns the first of them.
Timeline::Waiter* Timeline::take(uint64_t count) {
  Waiter* const taken = first_;
  Waiter* end = nullptr;
  while (first_ != nullptr && first_->count <= count) {
    end = first_;
    end->is_listed = false;
    first_ = end->next;
  }
  if (end == nullptr) return nullptr;
  end->next = nullptr;
  (first_ == nullptr ? last_ : first_->previous) = nullptr;
  return taken;
}

// Wakes the waiters that take() returned.
void Timeline::wake(Waiter* first) {
  while (first != nullptr) {
    Waiter* const next = first->next;
    std::atomic<uint32_t>* const word = &first->is_woken;
    word->store(1, std::memory_order_release);
    // The waiter may no longer exist. Waking an address without a sleeping thread has no effect; a
    // thread that sleeps there for another reason checks its condition and sleeps on.
    os::wake_sleeper(word);
    first = next;
  }
}

}  // namespace openreg
