// When work counts as done in a dry run.
//
// Note [Timing of a dry run]
// Whether a stream has passed a point depends on the speed of the device. Two things of a program
// depend on that: when memory that other streams use is reused, and what queries answer. A dry run
// decides both by a rule, so that each run has the same memory:
//   early  Work is done at once. The memory's own stream waits for the other streams, and a query
//          waits.
//   late   Work is done when the host has waited for the device. A query that is repeated waits, so
//          that a loop which asks until an event is complete ends.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <openreg/device.h>

#include <array>
#include <cstdint>
#include <unordered_map>

#include "csrc/core/Mutex.h"
#include "csrc/extras/dry_run/DryRunObserver.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {

// Any thread may call any function.
class HostWaits {
 public:
  explicit HostWaits(DryRunTiming timing) : is_late_(timing == DryRunTiming::Late) {}

  // Work is enqueued; an event is recorded or deleted; memory is freed.
  void noteWork(const c10::openreg::OpenRegStream& stream);
  void noteRecord(const void* event, const c10::openreg::OpenRegStream& stream);
  void forget(const void* event) noexcept;
  void noteFree(const void* address, c10::DeviceIndex device) noexcept;

  // The host has waited for a device, or for an event on it. Device -1 means all.
  void noteWait(c10::DeviceIndex device);
  void noteWait(const void* event);

  c10::openreg::Progress progressOf(const void* event);
  c10::openreg::Progress progressOf(const c10::openreg::OpenRegStream& stream);

  c10::openreg::Reuse whenToReuse(const void* address,
                                  c10::ArrayRef<c10::openreg::OpenRegStream> used_on);

 private:
  // A point of a device's work: how often the host had waited for the device.
  struct Point {
    c10::DeviceIndex device = 0;
    uint64_t waits = 0;
    bool was_asked = false;
  };

  Point now(c10::DeviceIndex device) const OPENREG_REQUIRES(mutex_) {
    return {device, waits_[device]};
  }
  bool isDone(const Point& point) const OPENREG_REQUIRES(mutex_) {
    return waits_[point.device] > point.waits;
  }
  bool isIdle(const c10::openreg::OpenRegStream& stream) const OPENREG_REQUIRES(mutex_);

  const bool is_late_;
  mutable c10::openreg::Mutex mutex_;  // a leaf
  std::array<uint64_t, OPENREG_MAX_DEVICES> waits_ OPENREG_GUARDED_BY(mutex_){};
  std::unordered_map<c10::openreg::OpenRegStream, Point> last_work_ OPENREG_GUARDED_BY(mutex_);
  std::unordered_map<const void*, Point> records_ OPENREG_GUARDED_BY(mutex_);  // by events
  std::unordered_map<const void*, Point> frees_ OPENREG_GUARDED_BY(mutex_);    // by addresses
};

}  // namespace at::openreg
