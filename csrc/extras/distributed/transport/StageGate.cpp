#include "csrc/extras/distributed/transport/StageGate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace at::openreg {

using c10::openreg::Lock;

StageGate& StageGate::instance() {
  // Leaked, because a worker may still use it when the process ends.
  static auto* gate = new StageGate();
  return *gate;
}

void StageGate::close(const std::string& stage) {
  static constexpr std::array<std::string_view, 5> kNames = {"announced", "heard", "agreed",
                                                             "posted", "finished"};
  const auto* const it = std::find(kNames.begin(), kNames.end(), stage);
  TORCH_CHECK_VALUE(it != kNames.end(),
                    "StageGate: expected announced, heard, agreed, posted or finished, got ",
                    stage);
  const Lock lock(mutex_);
  is_reached_ = false;
  closed_ = static_cast<int>(it - kNames.begin());
}

void StageGate::open() {
  const Lock lock(mutex_);
  closed_ = kNone;
  changed_.notify_all();
}

bool StageGate::waitUntilReached(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  Lock lock(mutex_);
  while (!is_reached_) {
    if (lock.waitUntil(changed_, deadline) == std::cv_status::timeout) {
      return is_reached_;
    }
  }
  return true;
}

void StageGate::hold(Stage stage) {
  Lock lock(mutex_);
  while (closed_ == static_cast<int>(stage)) {
    is_reached_ = true;
    changed_.notify_all();
    lock.wait(changed_);
  }
}

}  // namespace at::openreg
