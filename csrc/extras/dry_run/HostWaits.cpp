#include "csrc/extras/dry_run/HostWaits.h"

#include <algorithm>

namespace at::openreg {

using c10::openreg::Lock;
using c10::openreg::OpenRegStream;
using c10::openreg::Progress;
using c10::openreg::Reuse;

void HostWaits::noteWork(const OpenRegStream& stream) {
  if (is_late_) {
    const Lock lock(mutex_);
    last_work_[stream] = now(stream.device_index());
  }
}

void HostWaits::noteRecord(const void* event, const OpenRegStream& stream) {
  if (is_late_) {
    const Lock lock(mutex_);
    Point point = now(stream.device_index());
    if (isIdle(stream)) {
      point.was_asked = true;  // there is nothing to wait for
    }
    records_[event] = point;
  }
}

void HostWaits::forget(const void* event) noexcept {
  if (is_late_) {
    const Lock lock(mutex_);
    records_.erase(event);
  }
}

void HostWaits::noteFree(const void* address, c10::DeviceIndex device) noexcept {
  if (is_late_) {
    const Lock lock(mutex_);
    frees_[address] = now(device);
  }
}

void HostWaits::noteWait(c10::DeviceIndex device) {
  if (is_late_) {
    const Lock lock(mutex_);
    if (device >= 0) {
      ++waits_[device];
    } else {
      std::for_each(waits_.begin(), waits_.end(), [](uint64_t& waits) { ++waits; });
    }
  }
}

void HostWaits::noteWait(const void* event) {
  if (is_late_) {
    const Lock lock(mutex_);
    if (const auto found = records_.find(event); found != records_.end()) {
      ++waits_[found->second.device];
    }
  }
}

bool HostWaits::isIdle(const OpenRegStream& stream) const {
  const auto found = last_work_.find(stream);
  return found == last_work_.end() || isDone(found->second);
}

Progress HostWaits::progressOf(const void* event) {
  if (is_late_) {
    const Lock lock(mutex_);
    const auto found = records_.find(event);
    if (found != records_.end() && !isDone(found->second) && !found->second.was_asked) {
      found->second.was_asked = true;
      return Progress::Pending;
    }
  }
  return Progress::Awaited;
}

Progress HostWaits::progressOf(const OpenRegStream& stream) {
  if (is_late_) {
    const Lock lock(mutex_);
    const auto found = last_work_.find(stream);
    if (found != last_work_.end() && !isDone(found->second) && !found->second.was_asked) {
      found->second.was_asked = true;
      return Progress::Pending;
    }
  }
  return Progress::Awaited;
}

Reuse HostWaits::whenToReuse(const void* address, c10::ArrayRef<OpenRegStream> used_on) {
  if (is_late_) {
    const Lock lock(mutex_);
    const auto freed = frees_.find(address);
    const bool is_done = (freed != frees_.end() && isDone(freed->second)) ||
                         std::all_of(used_on.begin(), used_on.end(),
                                     [&](const OpenRegStream& stream)
                                         OPENREG_REQUIRES(mutex_) { return isIdle(stream); });
    if (!is_done) {
      return Reuse::NotYet;
    }
    frees_.erase(address);
  }
  return Reuse::InOrder;
}

}  // namespace at::openreg
