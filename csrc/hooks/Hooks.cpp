#include "csrc/hooks/Hooks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <openreg/openreg.h>

#include <algorithm>

#include "csrc/memory/PinnedAllocator.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Stream.h"
#include "torch_openreg/random/Generator.h"

namespace at::openreg {

bool OpenRegHooksInterface::isBuilt() const { return true; }

bool OpenRegHooksInterface::isAvailable() const { return c10::openreg::deviceCount() > 0; }

bool OpenRegHooksInterface::hasPrimaryContext(c10::DeviceIndex device) const {
  c10::openreg::checkDeviceIndex(device);
  return c10::openreg::isDeviceActive(device);
}

void OpenRegHooksInterface::init() const {
  c10::openreg::ensureHasDevice();
  // The default stream is a device's first need.
  c10::openreg::getDefaultOpenRegStream();
}

c10::DeviceIndex OpenRegHooksInterface::deviceCount() const { return c10::openreg::deviceCount(); }

void OpenRegHooksInterface::setCurrentDevice(c10::DeviceIndex device) const {
  c10::openreg::setDevice(device);
}

c10::DeviceIndex OpenRegHooksInterface::getCurrentDevice() const {
  return c10::openreg::currentDevice();
}

c10::DeviceIndex OpenRegHooksInterface::exchangeDevice(c10::DeviceIndex device) const {
  return c10::openreg::exchangeDevice(device);
}

c10::DeviceIndex OpenRegHooksInterface::maybeExchangeDevice(c10::DeviceIndex device) const {
  return c10::openreg::maybeExchangeDevice(device);
}

bool OpenRegHooksInterface::isPinnedPtr(const void* data) const { return isPinnedPointer(data); }

c10::Allocator* OpenRegHooksInterface::getPinnedMemoryAllocator() const {
  c10::openreg::ensureHasDevice();
  return at::getHostAllocator(c10::openreg::kDeviceType);
}

c10::Device OpenRegHooksInterface::getDeviceFromPtr(void* data) const {
  orPointerAttributes attributes;
  OPENREG_CHECK(orPointerGetAttributes(&attributes, data));
  TORCH_CHECK(attributes.type == orMemoryTypeDevice,
              "getDeviceFromPtr: expected a pointer into openreg device memory, got ", data);
  return c10::Device(c10::openreg::kDeviceType, static_cast<c10::DeviceIndex>(attributes.device));
}

void OpenRegHooksInterface::resizePrivateUse1Bytes(const c10::Storage& storage,
                                                   size_t new_size) const {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceGuard guard(impl->device());
  c10::DataPtr data = c10::getDeviceAllocator(c10::openreg::kDeviceType)->allocate(new_size);
  const size_t kept = std::min(impl->nbytes(), new_size);
  if (kept > 0) {
    OPENREG_CHECK(orMemcpyAsync(data.get(), impl->data(), kept, orMemcpyDeviceToDevice,
                                c10::openreg::getCurrentOpenRegStream().handle()));
  }
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(new_size);
}

const Generator& OpenRegHooksInterface::getDefaultGenerator(c10::DeviceIndex device) const {
  return defaultGenerator(device);
}

Generator OpenRegHooksInterface::getNewGenerator(c10::DeviceIndex device) const {
  return makeGenerator(device);
}

namespace {

struct HooksRegistration {
  HooksRegistration() { at::RegisterPrivateUse1HooksInterface(new OpenRegHooksInterface()); }
} registration;

}  // namespace

}  // namespace at::openreg
