// Timelines: the progress of a stream. See Note [Submit and retire] in openreg/stream.h.
//
// Note [Waiters]
// A waiting thread sleeps on a word of its own, in a list that is sorted by the counts that the
// threads wait for. A command that retires wakes only the threads that wait for it, so threads that
// wait for later commands cost it nothing. A thread that joins the list passes at most those that
// wait for something between the smallest and the largest count; the first and the last position,
// which most threads take, are found at once.
//
// Lock order: a timeline's mutex is a leaf.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "base/os.h"

namespace openreg {

// Aligned to a cache line, because the worker changes it for each command.
class alignas(os::cache_line_size) Timeline {
 public:
  // Counts one more retired command. Called only by the stream's worker.
  void retire();

  // The number of retired commands. Everything the worker did before it retired the n-th is visible
  // to a thread that reads n here.
  uint64_t retired() const { return retired_.load(std::memory_order_acquire); }

  enum class WaitEnd : uint8_t { Retired, Stopped, EndedEarly };

  // Waits until retired() >= count, until that cannot happen any more, or until the calling
  // thread's check ends the wait.
  WaitEnd wait(uint64_t count);

  // Ends all waits, now and later.
  void stop();

 private:
  // A waiting thread. It is on that thread's stack, and may be destroyed as soon as `is_woken` is
  // set.
  struct Waiter {
    const uint64_t count;
    std::atomic<uint32_t> is_woken{0};
    bool is_listed = false;  // the list's neighbors are set
    Waiter* previous = nullptr;
    Waiter* next = nullptr;
  };

  void add(Waiter& waiter) OPENREG_REQUIRES(mutex_);
  void remove(Waiter& waiter) OPENREG_REQUIRES(mutex_);
  Waiter* take(uint64_t count) OPENREG_REQUIRES(mutex_);
  static void wake(Waiter* first);

  Mutex mutex_;
  Waiter* first_ OPENREG_GUARDED_BY(mutex_) = nullptr;  // the smallest count; see Note [Waiters]
  Waiter* last_ OPENREG_GUARDED_BY(mutex_) = nullptr;
  std::atomic<uint64_t> retired_{0};  // changed under mutex_, read by anyone at any time
  bool is_stopped_ OPENREG_GUARDED_BY(mutex_) = false;
};

}  // namespace openreg
