#include "torch_openreg/core/Functions.h"

#include <openreg/openreg.h>

#include <string_view>

#include "csrc/core/Interrupt.h"
#include "csrc/core/Settings.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

DeviceIndex deviceCount() noexcept {
  static const DeviceIndex count = [] {
    int value = 0;
    if (orGetDeviceCount(&value) != orSuccess) {
      value = 0;
    }
    return static_cast<DeviceIndex>(value);
  }();
  return count;
}

void ensureHasDevice() {
  int value = 0;
  OPENREG_CHECK(orGetDeviceCount(&value));
  TORCH_CHECK(value > 0, "No OpenReg device is available: ", whyNoDevice());
}

void initialize() {
  ensureHasDevice();
  const std::string_view asked = settingText(orSettingIndex_OPENREG_DEVICE_TYPE);
  const std::string_view served = servesCuda() ? "cuda" : "openreg";
  TORCH_CHECK(asked == served, "OPENREG_DEVICE_TYPE: expected '", served,
              "', which it was when torch_openreg was loaded, got '", asked,
              "'; set it before the process imports torch");
  // The default stream is a device's first need.
  getDefaultOpenRegStream();
}

void checkDeviceIndex(int64_t index) {
  if (C10_UNLIKELY(index < 0 || index >= deviceCount())) {
    ensureHasDevice();
    TORCH_CHECK(false, "The device index is out of range. It must be in [0, ",
                static_cast<int>(deviceCount()), "), but got ", index, ".");
  }
}

DeviceIndex currentDevice() {
  int index = 0;
  OPENREG_CHECK(orGetDevice(&index));
  return static_cast<DeviceIndex>(index);
}

void setDevice(DeviceIndex index) {
  checkDeviceIndex(index);
  OPENREG_CHECK(orSetDevice(index));
}

DeviceIndex exchangeDevice(DeviceIndex index) {
  checkDeviceIndex(index);
  const DeviceIndex previous = currentDevice();
  if (index != previous) {
    OPENREG_CHECK(orSetDevice(index));
  }
  return previous;
}

DeviceIndex maybeExchangeDevice(DeviceIndex index) {
  return index < 0 ? currentDevice() : exchangeDevice(index);
}

DeviceIndex resolveDeviceIndex(int64_t index) {
  if (index < 0) {
    return currentDevice();
  }
  checkDeviceIndex(index);
  return static_cast<DeviceIndex>(index);
}

void synchronizeDevice(DeviceIndex index, const char* caller) {
  OPENREG_CHECK_RESULT(waitInterruptibly([index] { return orDeviceSynchronizeIndex(index); }),
                       caller);
}

bool isDeviceActive(DeviceIndex index) noexcept {
  int is_active = 0;
  return orDeviceIsActive(index, &is_active) == orSuccess && is_active != 0;
}

bool isInBadFork() noexcept {
  int is_forked = 0;
  return orIsForkedChild(&is_forked) == orSuccess && is_forked != 0;
}

}  // namespace c10::openreg
