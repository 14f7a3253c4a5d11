#include "csrc/hooks/Hooks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <openreg/openreg.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "csrc/memory/PinnedAllocator.h"
#include "csrc/memory/StorageResize.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Stream.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {

template <typename Interface>
bool OpenRegHooks<Interface>::isBuilt() const {
  return true;
}

template <typename Interface>
bool OpenRegHooks<Interface>::isAvailable() const {
  return c10::openreg::device_count() > 0;
}

template <typename Interface>
bool OpenRegHooks<Interface>::hasPrimaryContext(c10::DeviceIndex device) const {
  c10::openreg::check_device_index(device);
  // The engine asks on the thread that called backward, before it starts the pass.
  noteBackwardCalled();
  return c10::openreg::isDeviceActive(device);
}

template <typename Interface>
void OpenRegHooks<Interface>::init() const {
  c10::openreg::checkInitialization();
}

template <typename Interface>
c10::DeviceIndex OpenRegHooks<Interface>::deviceCount() const {
  return c10::openreg::device_count();
}

template <typename Interface>
void OpenRegHooks<Interface>::setCurrentDevice(c10::DeviceIndex device) const {
  c10::openreg::set_device(device);
}

template <typename Interface>
c10::DeviceIndex OpenRegHooks<Interface>::getCurrentDevice() const {
  return c10::openreg::current_device();
}

template <typename Interface>
c10::DeviceIndex OpenRegHooks<Interface>::exchangeDevice(c10::DeviceIndex device) const {
  return c10::openreg::exchange_device(device);
}

template <typename Interface>
c10::DeviceIndex OpenRegHooks<Interface>::maybeExchangeDevice(c10::DeviceIndex device) const {
  return c10::openreg::maybe_exchange_device(device);
}

template <typename Interface>
bool OpenRegHooks<Interface>::isPinnedPtr(const void* data) const {
  return isPinnedPointer(data);
}

template <typename Interface>
c10::Allocator* OpenRegHooks<Interface>::getPinnedMemoryAllocator() const {
  c10::openreg::ensureHasDevice();
  return at::getHostAllocator(c10::openreg::kDeviceType);
}

template <typename Interface>
c10::Device OpenRegHooks<Interface>::getDeviceFromPtr(void* data) const {
  orPointerAttributes attributes;
  OPENREG_CHECK(orPointerGetAttributes(&attributes, data));
  TORCH_CHECK(attributes.type == orMemoryTypeDevice, "getDeviceFromPtr: expected a pointer into ",
              c10::openreg::kDeviceType, " device memory, got ", data);
  return c10::Device(c10::openreg::kDeviceType, static_cast<c10::DeviceIndex>(attributes.device));
}

template <typename Interface>
const Generator& OpenRegHooks<Interface>::getDefaultGenerator(c10::DeviceIndex device) const {
  return getDefaultOpenRegGenerator(device);
}

template <typename Interface>
Generator OpenRegHooks<Interface>::getNewGenerator(c10::DeviceIndex device) const {
  return createOpenRegGenerator(device);
}

// The classes that are registered.

void OpenRegHooksInterface::resizePrivateUse1Bytes(const c10::Storage& storage,
                                                   size_t new_size) const {
  c10::openreg::resizeStorage(storage, new_size);
}

bool CudaHooks::hasCUDA() const { return true; }

c10::DeviceIndex CudaHooks::current_device() const { return c10::openreg::current_device(); }

c10::Allocator* CudaHooks::getCUDADeviceAllocator() const {
  return c10::GetAllocator(c10::openreg::kDeviceType);
}

int CudaHooks::getNumGPUs() const { return c10::openreg::device_count(); }

void CudaHooks::deviceSynchronize(c10::DeviceIndex device) const {
  c10::openreg::synchronizeDevice(c10::openreg::resolveDeviceIndex(device));
}

std::string CudaHooks::showConfig() const { return "CUDA, emulated on the CPU by torch_openreg"; }

namespace {

std::atomic<int64_t>& maxSizeOfPlanCache(c10::DeviceIndex device) {
  static auto* sizes = [] {
    constexpr int64_t kDefault = 4096;  // cuFFT's
    auto* made = new std::vector<std::atomic<int64_t>>(c10::openreg::device_count());
    std::fill(made->begin(), made->end(), kDefault);
    return made;
  }();
  return sizes->at(c10::openreg::resolveDeviceIndex(device));
}

}  // namespace

int64_t CudaHooks::cuFFTGetPlanCacheMaxSize(c10::DeviceIndex device) const {
  return maxSizeOfPlanCache(device);
}

void CudaHooks::cuFFTSetPlanCacheMaxSize(c10::DeviceIndex device, int64_t max_size) const {
  TORCH_CHECK(max_size >= 0, "max_size of the cuFFT plan cache: expected 0 or more, got ",
              max_size);
  maxSizeOfPlanCache(device) = max_size;
}

int64_t CudaHooks::cuFFTGetPlanCacheSize(c10::DeviceIndex device) const {
  c10::openreg::resolveDeviceIndex(device);
  return 0;
}

void CudaHooks::cuFFTClearPlanCache(c10::DeviceIndex device) const {
  c10::openreg::resolveDeviceIndex(device);
}

namespace {

// Note [Place of the hooks]
// at::detail::getCUDAHooks() creates the hooks at its first call and never replaces them, and
// `import torch` calls it before it loads backends. So ours is constructed in the memory of torch's
// object, the default one or, in a build with CUDA, that of libtorch_cuda: none of the classes has
// members, and they differ only in their virtual functions. Python checks afterwards that torch
// uses ours.
void placeCudaHooks() {
  static_assert(sizeof(CudaHooks) == sizeof(at::CUDAHooksInterface) &&
                alignof(CudaHooks) == alignof(at::CUDAHooksInterface));
  auto& hooks = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  constexpr std::string_view kHooksOfBuild = "N2at4cuda6detail9CUDAHooksE";
  if (typeid(hooks) == typeid(at::CUDAHooksInterface) || typeid(hooks).name() == kHooksOfBuild) {
    hooks.~CUDAHooksInterface();
    new (&hooks) CudaHooks();
  }
}

struct HooksRegistration {
  HooksRegistration() {
    if (c10::openreg::servesCuda()) {
      placeCudaHooks();
    } else {
      at::RegisterPrivateUse1HooksInterface(new OpenRegHooksInterface());
    }
  }
} registration;

}  // namespace

}  // namespace at::openreg
