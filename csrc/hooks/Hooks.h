// The device type's implementation of ATen's hooks.
#pragma once

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace at::openreg {

// Implements every virtual of AcceleratorHooksInterface, for both device types of Note [Device
// type].
template <typename Interface>
struct OpenRegHooks : public Interface {
  // docs: hooks-availability
  bool isBuilt() const override;
  bool isAvailable() const override;
  bool hasPrimaryContext(c10::DeviceIndex device) const override;
  void init() const override;  // creates no device; see checkInitialization()
  // docs: end

  // docs: hooks-device
  c10::DeviceIndex deviceCount() const override;
  void setCurrentDevice(c10::DeviceIndex device) const override;
  c10::DeviceIndex getCurrentDevice() const override;
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override;
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override;
  // docs: end

  // docs: hooks-memory
  bool isPinnedPtr(const void* data) const override;
  c10::Allocator* getPinnedMemoryAllocator() const override;
  c10::Device getDeviceFromPtr(void* data) const override;
  // docs: end

  // docs: hooks-generator
  const Generator& getDefaultGenerator(c10::DeviceIndex device) const override;
  Generator getNewGenerator(c10::DeviceIndex device = -1) const override;
  // docs: end
};

// docs: hooks-leaves
struct OpenRegHooksInterface final : public OpenRegHooks<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t new_size) const override;
};

// The base class reports that cuDNN, cuBLAS and other CUDA libraries are missing, so ATen uses its
// compositions instead.
struct CudaHooks final : public OpenRegHooks<at::CUDAHooksInterface> {
  bool hasCUDA() const override;
  c10::DeviceIndex current_device() const override;
  c10::Allocator* getCUDADeviceAllocator() const override;
  int getNumGPUs() const override;
  void deviceSynchronize(c10::DeviceIndex device) const override;
  std::string showConfig() const override;

  // Fourier transforms keep no plans: the cache is always empty; only its maximum size can be set.
  int64_t cuFFTGetPlanCacheMaxSize(c10::DeviceIndex device) const override;
  void cuFFTSetPlanCacheMaxSize(c10::DeviceIndex device, int64_t max_size) const override;
  int64_t cuFFTGetPlanCacheSize(c10::DeviceIndex device) const override;
  void cuFFTClearPlanCache(c10::DeviceIndex device) const override;
};
// docs: end

}  // namespace at::openreg
