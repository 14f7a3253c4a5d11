// Step 5 of docs/bring_up.md, the hooks. In full: csrc/hooks/Hooks.cpp.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "Generator.h"
#include "Stream.h"

namespace chip {

// What ATen and torch.accelerator ask of a device type beside its guard.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  void init() const override { check(orInit()); }  // by lazyInitDevice(), once
  bool hasPrimaryContext(DeviceIndex d) const override {
    int is_active = 0;  // whether synchronize() has anything to wait for
    check(orDeviceIsActive(d, &is_active));
    return is_active != 0;
  }

  DeviceIndex deviceCount() const override { return device_count(); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(DeviceIndex d) const override { set_device(d); }
  DeviceIndex exchangeDevice(DeviceIndex d) const override { return exchange_device(d); }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return maybe_exchange_device(d); }

  const at::Generator& getDefaultGenerator(DeviceIndex d) const override {
    return chip::getDefaultGenerator(d);
  }
  at::Generator getNewGenerator(DeviceIndex d) const override { return createGenerator(d); }

  at::Allocator* getPinnedMemoryAllocator() const override { return at::getHostAllocator(kType); }
  bool isPinnedPtr(const void* data) const override {
    orPointerAttributes attributes{};
    check(orPointerGetAttributes(&attributes, data));
    return attributes.type == orMemoryTypeHost;
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    const c10::DeviceGuard guard(storage.device());
    const Stream stream = currentStream(storage.device().index());
    auto* allocator = c10::getDeviceAllocator(kType);
    c10::DataPtr memory = allocator->allocate(size);
    if (const size_t kept = std::min(size, storage.nbytes()); kept > 0) {
      check(orMemcpyAsync(memory.get(), storage.data(), kept, orMemcpyDefault, handleOf(stream)));
      allocator->recordStream(storage.data_ptr(), stream);
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

// torch keeps them.
static const bool is_registered = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

}  // namespace chip
