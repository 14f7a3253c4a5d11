// ATen's hooks for the device type CUDA.
#pragma once

#include <ATen/detail/CUDAHooksInterface.h>

#include <string>

#include "csrc/hooks/Hooks.h"

namespace at::openreg {

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

}  // namespace at::openreg
