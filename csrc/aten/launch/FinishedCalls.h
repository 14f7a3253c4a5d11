// Reuses the memory of finished calls.
//
// Note [Finished calls]
// The calling thread allocates a call's memory, and a worker is the last to use it. If workers
// freed it, both threads would contend for the lock of malloc's arena, with a system call each
// time. So finished calls are kept as they are, and later calls reuse their memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace at::openreg {

// `Call` has a member `Call* next_finished`, and isWorthKeeping(). The number of kept calls is at
// most the largest number of unfinished calls so far; a thread that ends frees those that it has
// taken.
template <typename Call>
class FinishedCalls {
 public:
  // docs: finished-calls
  // A finished call to be prepared again, or a new one.
  static Call* take() {
    thread_local OwnList own;
    if (own.first == nullptr) {
      own.first = all_.exchange(nullptr, std::memory_order_acquire);
    }
    if (own.first == nullptr) {
      count_.fetch_add(1, std::memory_order_relaxed);
      return new Call;
    }
    return std::exchange(own.first, own.first->next_finished);
  }

  // From any thread. The call must hold no device memory and no tensor.
  static void giveBack(Call* call) {
    if (!call->isWorthKeeping()) {
      destroy(call);
      return;
    }
    call->next_finished = all_.load(std::memory_order_relaxed);
    while (!all_.compare_exchange_weak(call->next_finished, call, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    }
  }
  // docs: end

  // How many calls there are, finished or not.
  static size_t count() { return count_.load(std::memory_order_relaxed); }

 private:
  static void destroy(Call* call) {
    delete call;
    count_.fetch_sub(1, std::memory_order_relaxed);
  }

  // Takes all finished calls at once, so that a call that was returned meanwhile cannot be taken
  // twice.
  struct OwnList {
    ~OwnList() {
      while (first != nullptr) {
        destroy(std::exchange(first, first->next_finished));
      }
    }
    Call* first = nullptr;
  };

  static inline std::atomic<Call*> all_ = nullptr;
  static inline std::atomic<size_t> count_ = 0;
};

}  // namespace at::openreg
