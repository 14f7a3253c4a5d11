// The implementation of devices, streams and events for c10's DeviceGuard, torch.Stream,
// torch.Event and torch.accelerator.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <openreg/event.h>

#include "torch_openreg/core/Functions.h"

namespace c10::openreg {

// The flag of an event that can be shared with other processes. c10 has no such flag in 2.13, but
// passes an event's flag unchanged to the backend.
constexpr EventFlag kInterprocessEvent = static_cast<EventFlag>(0x100);

// Wraps an event of the runtime in a new c10::Event on a device, as if that had recorded it. Takes
// ownership of the handle, which may be an event of another process.
OPENREG_EXPORT c10::Event wrapEvent(orEvent_t handle, DeviceIndex device);

// Implements every virtual of the interface. Those that are noexcept report failures as warnings.
struct OpenRegGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override;

  // docs: guard-device
  Device exchangeDevice(Device device) const override;
  Device getDevice() const override;
  void setDevice(Device device) const override;
  void uncheckedSetDevice(Device device) const noexcept override;
  DeviceIndex deviceCount() const noexcept override;
  DeviceCapability getDeviceCapability(Device device) const override;
  void synchronizeDevice(DeviceIndex index) const override;
  // docs: end

  // docs: guard-stream
  Stream getStream(Device device) const override;
  Stream getDefaultStream(Device device) const override;
  Stream getStreamFromGlobalPool(Device device, bool isHighPriority = false) const override;
  Stream getNewStream(Device device, int priority = 0) const override;
  Stream exchangeStream(Stream stream) const override;
  void* getStreamNativeHandle(Stream stream) const override;
  bool queryStream(const Stream& stream) const override;
  void synchronizeStream(const Stream& stream) const override;
  bool isStreamCapturing(const Stream& stream) const override;
  void recordDataPtrOnStream(const DataPtr& data, const Stream& stream) const override;
  // docs: end

  // docs: guard-event
  void record(void** event, const Stream& stream, DeviceIndex index, EventFlag flag) const override;
  void block(void* event, const Stream& stream) const override;
  bool queryEvent(void* event) const override;
  void synchronizeEvent(void* event) const override;
  double elapsedTime(void* start, void* end, DeviceIndex index) const override;
  void destroyEvent(void* event, DeviceIndex index) const noexcept override;
  // docs: end
};

}  // namespace c10::openreg
