// The implementation of devices, streams and events for c10's DeviceGuard, torch.Stream,
// torch.Event and torch.accelerator.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <openreg/event.h>

#include "torch_openreg/core/Functions.h"

namespace c10::openreg {

// What an extra does for events with flags of its own: c10 passes an event's flag unchanged to the
// backend.
struct ImportedEvent {
  orEvent_t handle = nullptr;  // null: the flag is not one of the extra's
  bool is_recorded = false;    // then nothing is recorded; its first record is another one
};

// Called by the first record of a c10::Event whose flag is none of c10's. The event owns the
// handle. Errors: may throw.
using EventImporter = ImportedEvent (*)(EventFlag flag);

// There is one, which is installed while the library is loaded.
OPENREG_EXPORT void setEventImporter(EventImporter importer);

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
