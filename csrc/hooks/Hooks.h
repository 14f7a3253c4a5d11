// The device type's implementation of ATen's hooks.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <openreg/openreg.h>

#include <string>

#include "csrc/core/BackwardCall.h"
#include "csrc/memory/PinnedAllocator.h"
#include "csrc/memory/StorageResize.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {

// Implements every virtual of AcceleratorHooksInterface, for both device types of Note [Device
// type].
template <typename Interface>
struct OpenRegHooks : public Interface {
  // docs: hooks-availability
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return c10::openreg::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    c10::openreg::check_device_index(device);
    // The engine asks on the thread that called backward, before it starts the pass.
    c10::openreg::noteBackwardCalled();
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

// The base class reports that cuDNN, cuBLAS and other CUDA libraries are missing, so ATen uses its
// compositions instead.
struct CudaHooks final : public OpenRegHooks<at::CUDAHooksInterface> {
  bool hasCUDA() const override { return true; }
  c10::DeviceIndex current_device() const override { return c10::openreg::current_device(); }
  c10::Allocator* getCUDADeviceAllocator() const override {
    return c10::GetAllocator(c10::openreg::kDeviceType);
  }
  int getNumGPUs() const override { return c10::openreg::device_count(); }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    c10::openreg::synchronizeDevice(c10::openreg::resolveDeviceIndex(device));
  }
  std::string showConfig() const override { return "CUDA, emulated on the CPU by torch_openreg"; }

  // Fourier transforms keep no plans: the cache is always empty; only its maximum size can be set.
  int64_t cuFFTGetPlanCacheMaxSize(c10::DeviceIndex device) const override;
  void cuFFTSetPlanCacheMaxSize(c10::DeviceIndex device, int64_t max_size) const override;
  int64_t cuFFTGetPlanCacheSize(c10::DeviceIndex device) const override {
    c10::openreg::resolveDeviceIndex(device);
    return 0;
  }
  void cuFFTClearPlanCache(c10::DeviceIndex device) const override {
    c10::openreg::resolveDeviceIndex(device);
  }
};
// docs: end

}  // namespace at::openreg
