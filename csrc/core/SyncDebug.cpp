#include "csrc/core/SyncDebug.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "csrc/core/DeviceName.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace c10::openreg {
namespace {

std::atomic<SyncDebugMode> current_mode{SyncDebugMode::Silent};

}  // namespace

SyncDebugMode syncDebugMode() noexcept { return current_mode.load(std::memory_order_relaxed); }

void setSyncDebugMode(SyncDebugMode mode) noexcept {
  current_mode.store(mode, std::memory_order_relaxed);
}

void reportSynchronization(const char* operation) {
  const SyncDebugMode mode = syncDebugMode();
  if (C10_LIKELY(mode == SyncDebugMode::Silent)) {
    return;
  }
  const char* device = deviceName();
  TORCH_CHECK(mode != SyncDebugMode::Error, "called a synchronizing ", device,
              " operation: ", operation);
  TORCH_WARN("called a synchronizing ", device, " operation: ", operation);
}

}  // namespace c10::openreg
