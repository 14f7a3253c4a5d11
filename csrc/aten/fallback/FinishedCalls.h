// Memory of finished calls, for the next ones.
//
// Note [Finished calls]
// A calling thread allocates what a call needs, and a worker is done with it. If workers freed it,
// both would meet at the lock of malloc's arena, with a system call each time. So finished calls
// are kept as they are, and the next calls use their memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace at::openreg {

// `Call` has a member `Call* next_finished`, and isWorthKeeping(). As many calls are kept as were
// unfinished at a time; a thread that ends frees those that it has taken.
template <typename Call>
class FinishedCalls {
 public:
  // docs: finished-calls
  // A finished call, or a new one: to be prepared.
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

  // From any thread. The call keeps no memory of the device and no tensor.
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

  // Taken from the others all at once, so that nobody takes a call that has been back meanwhile.
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
