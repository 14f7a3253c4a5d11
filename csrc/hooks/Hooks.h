// The device type's implementation of ATen's hooks: a template over torch's interface for a device
// type, and the class for the backend's own.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <openreg/openreg.h>

#include "csrc/core/BackwardCall.h"
#include "csrc/memory/PinnedAllocator.h"
#include "csrc/memory/StorageResize.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {

// Implements every virtual of AcceleratorHooksInterface; see Note [Device type].
template <typename Interface>
struct OpenRegHooks : public Interface {
  // docs: hooks-availability
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return c10::openreg::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    c10::openreg::check_device_index(device);
    // The engine asks on the thread that called backward, before it starts the pass.
    c10::openreg::announceBackward();
    return c10::openreg::isDeviceActive(device);
  }
  void init() const override { c10::openreg::checkInitialization(); }  // creates no device
  // docs: end

  // docs: hooks-device
  c10::DeviceIndex deviceCount() const override { return c10::openreg::device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    c10::openreg::set_device(device);
  }
  c10::DeviceIndex getCurrentDevice() const override { return c10::openreg::current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return c10::openreg::exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return c10::openreg::maybe_exchange_device(device);
  }
  // docs: end

  // docs: hooks-memory
  bool isPinnedPtr(const void* data) const override { return isPinnedPointer(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    c10::openreg::ensureHasDevice();
    return at::getHostAllocator(c10::openreg::kDeviceType);
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    orPointerAttributes attributes;
    OPENREG_CHECK(orPointerGetAttributes(&attributes, data));
    TORCH_CHECK(attributes.type == orMemoryTypeDevice, "getDeviceFromPtr: expected a pointer into ",
                c10::openreg::kDeviceType, " device memory, got ", data);
    return c10::Device(c10::openreg::kDeviceType, static_cast<c10::DeviceIndex>(attributes.device));
  }
  // docs: end

  // docs: hooks-generator
  const Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return getDefaultOpenRegGenerator(device);
  }
  Generator getNewGenerator(c10::DeviceIndex device = -1) const override {
    return createOpenRegGenerator(device);
  }
  // docs: end
};

// docs: hooks-leaves
struct OpenRegHooksInterface final : public OpenRegHooks<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t new_size) const override {
    c10::openreg::resizeStorage(storage, new_size);
  }
};
// docs: end

}  // namespace at::openreg
