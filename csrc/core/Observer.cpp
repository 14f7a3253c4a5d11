#include "torch_openreg/core/Observer.h"

#include <algorithm>
#include <array>

#include "torch_openreg/core/Trace.h"

namespace c10::openreg {

std::atomic<int> detail::observer_count{0};

namespace {

// An observer stays valid when it is removed while another thread calls it, so that reports need no
// lock.
using Observers = std::array<std::atomic<Observer*>, kMaxObservers>;
Observers observers{};
Observers observers_of_shortages{};  // and of nothing else

bool replace(Observers& observers, Observer* from, Observer* to) noexcept {
  return std::any_of(observers.begin(), observers.end(), [&](std::atomic<Observer*>& slot) {
    Observer* expected = from;
    return slot.compare_exchange_strong(expected, to);
  });
}

void callEach(const Observers& observers, c10::function_ref<void(Observer&)> call) {
  for (const auto& slot : observers) {
    if (Observer* observer = slot.load()) {
      call(*observer);
    }
  }
}

}  // namespace

void addObserver(Observer& observer, ObservedEvents events) {
  const bool is_for_all = events == ObservedEvents::All;
  TORCH_CHECK(replace(is_for_all ? observers : observers_of_shortages, nullptr, &observer),
              "addObserver: expected at most ", kMaxObservers, " observers at a time");
  if (is_for_all) {
    ++detail::observer_count;
  }
}

void removeObserver(Observer& observer) noexcept {
  if (replace(observers, &observer, nullptr)) {
    --detail::observer_count;
  } else {
    replace(observers_of_shortages, &observer, nullptr);
  }
}

void detail::forEachObserver(c10::function_ref<void(Observer&)> call) { callEach(observers, call); }

void detail::forEachObserverOfShortages(c10::function_ref<void(Observer&)> call) {
  callEach(observers_of_shortages, call);
  callEach(observers, call);
}

bool wantsTraces() {
  bool is_wanted = false;
  if (isObserved()) {
    callEach(observers, [&](Observer& observer) { is_wanted |= observer.wantsTraces(); });
  }
  return is_wanted;
}

std::shared_ptr<Trace> findTrace(const OpenRegStream& stream, const TracedKernel& kernel) {
  std::shared_ptr<Trace> trace;
  if (isObserved()) {
    callEach(observers, [&](Observer& observer) {
      if (trace == nullptr) {
        trace = observer.kernelTrace(stream, kernel);
      }
    });
  }
  return trace;
}

}  // namespace c10::openreg
