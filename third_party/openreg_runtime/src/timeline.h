// Timelines: how far a stream has got. See Note [Submit and retire] in openreg/stream.h.
//
// Lock order: a timeline's mutex is a leaf.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>

#include "mutex.h"
#include "os.h"

namespace openreg {

// Aligned to a cache line, which the worker changes for each command.
class alignas(os::cache_line_size) Timeline {
 public:
  // Counts one more retired command. Called by the stream's worker alone.
  void retire();

  // How many commands retired. What the worker did before it retired the n-th is visible to a
  // thread that reads n here.
  uint64_t retired() const { return retired_.load(std::memory_order_acquire); }

  enum class WaitEnd : uint8_t { Retired, Stopped, EndedEarly };

  // Waits until retired() >= count, until that will never be, or until the calling thread's check
  // ends the wait.
  WaitEnd wait(uint64_t count);

  // Ends all waits, now and later.
  void stop();

 private:
  static constexpr uint64_t nobody_waits = std::numeric_limits<uint64_t>::max();

  Mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> retired_{0};  // changed under mutex_, read by anyone at any time
  uint64_t wake_count_ OPENREG_GUARDED_BY(mutex_) =
      nobody_waits;  // the least count that a thread waits for
  bool is_stopped_ OPENREG_GUARDED_BY(mutex_) = false;
};

}  // namespace openreg
