#include "torch_openreg/core/Observer.h"

#include <algorithm>
#include <array>

namespace c10::openreg {

std::atomic<int> detail::observer_count{0};

namespace {

// An observer stays valid when it is removed while another thread calls it, so that reports need no
// lock.
std::array<std::atomic<Observer*>, kMaxObservers> observers{};

bool replace(Observer* from, Observer* to) noexcept {
  return std::any_of(observers.begin(), observers.end(), [&](std::atomic<Observer*>& slot) {
    Observer* expected = from;
    return slot.compare_exchange_strong(expected, to);
  });
}

}  // namespace

void addObserver(Observer& observer) {
  TORCH_CHECK(replace(nullptr, &observer), "addObserver: expected at most ", kMaxObservers,
              " observers at a time");
  ++detail::observer_count;
}

void removeObserver(Observer& observer) noexcept {
  if (replace(&observer, nullptr)) {
    --detail::observer_count;
  }
}

void detail::forEachObserver(c10::function_ref<void(Observer&)> call) {
  for (const auto& slot : observers) {
    if (Observer* observer = slot.load()) {
      call(*observer);
    }
  }
}

}  // namespace c10::openreg
