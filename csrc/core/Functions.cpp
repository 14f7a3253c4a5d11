#include "torch_openreg/core/Functions.h"

#include <openreg/openreg.h>

#include <string_view>

#include "csrc/core/DeviceForm.h"
#include "csrc/core/DeviceName.h"
#include "csrc/core/Interrupt.h"
#include "csrc/core/Settings.h"
#include "torch_openreg/core/Exception.h"

namespace c10::openreg {
namespace {

const Setting kDeviceTypeSetting{
    "OPENREG_DEVICE_TYPE", "openreg", "openreg cuda none",
    "The device type that the PyTorch backend serves. Read when its library is loaded."};

}  // namespace

DeviceIndex device_count() noexcept {
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
  TORCH_CHECK(value > 0, "No ", deviceName(), " device is available: ", whyNoDevice());
}

void checkInitialization() {
  ensureHasDevice();
  const std::string_view asked = kDeviceTypeSetting.text();
  const std::string_view served = deviceForm().choice();
  TORCH_CHECK(asked == served, "OPENREG_DEVICE_TYPE changed from '", served, "' to '", asked,
              "' after torch_openreg was loaded; set it before importing torch");
}

void initialize() {
  checkInitialization();
  OPENREG_CHECK(orInit());
}

void check_device_index(int64_t index) {
  if (C10_UNLIKELY(index < 0 || index >= device_count())) {
    ensureHasDevice();
    deviceForm().refuseIndex(index);
  }
}

DeviceIndex current_device() {
  DeviceIndex index = 0;
  OPENREG_CHECK_RESULT(GetDevice(&index), "orGetDevice");
  return index;
}

// docs: set-device
void set_device(DeviceIndex index) {
  check_device_index(index);
  OPENREG_CHECK_RESULT(SetDevice(index), "orSetDevice");
}

DeviceIndex exchange_device(DeviceIndex index) {
  check_device_index(index);
  return ExchangeDevice(index);
}

DeviceIndex maybe_exchange_device(DeviceIndex index) {
  return index < 0 || index >= device_count() ? current_device() : ExchangeDevice(index);
}

orError_t GetDeviceCount(int* count) noexcept { return orGetDeviceCount(count); }

orError_t GetDevice(DeviceIndex* index) noexcept {
  int current = 0;
  const orError_t error = orGetDevice(&current);
  if (error == orSuccess) {
    *index = static_cast<DeviceIndex>(current);
  }
  return error;
}

orError_t SetDevice(DeviceIndex index) noexcept { return orSetDevice(index); }

DeviceIndex ExchangeDevice(DeviceIndex index) {
  const DeviceIndex previous = current_device();
  if (index != previous) {
    OPENREG_CHECK_RESULT(SetDevice(index), "orSetDevice");
  }
  return previous;
}

DeviceIndex MaybeExchangeDevice(DeviceIndex index) {
  return index < 0 ? current_device() : ExchangeDevice(index);
}
// docs: end

DeviceIndex resolveDeviceIndex(int64_t index) {
  if (index == -1) {
    return current_device();
  }
  check_device_index(index);
  return static_cast<DeviceIndex>(index);
}

void synchronizeDevice(DeviceIndex index, const char* caller) {
  OPENREG_CHECK_RESULT(waitInterruptibly([index] { return orDeviceSynchronizeIndex(index); }),
                       caller);
}

AddressRange addressRange(DeviceIndex index) {
  void* begin = nullptr;
  size_t size = 0;
  OPENREG_CHECK(orDeviceGetAddressRange(&begin, &size, index));
  return {begin, size};
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
