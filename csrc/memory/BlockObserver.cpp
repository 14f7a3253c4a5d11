#include "csrc/memory/BlockObserver.h"

#include <mutex>

namespace c10::openreg {
namespace {

void (*preparation)() = nullptr;

}  // namespace

void setBlockObserver(BlockObserver& observer) noexcept {
  detail::block_observer.store(&observer, std::memory_order_release);
}

void beforeFirstAllocation(void (*function)()) noexcept { preparation = function; }

void prepareBlockObserver() {
  static std::once_flag is_prepared;
  std::call_once(is_prepared, [] {
    if (preparation != nullptr) {
      preparation();
    }
  });
}

}  // namespace c10::openreg
