#include "csrc/core/GuardImpl.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <openreg/openreg.h>

#include <atomic>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Interrupt.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {
namespace {

orEvent_t asEvent(void* event) { return static_cast<orEvent_t>(event); }

std::atomic<EventImporter> event_importer{nullptr};

ImportedEvent importEvent(EventFlag flag) {
  const EventImporter importer = event_importer.load();
  const ImportedEvent event = importer == nullptr ? ImportedEvent{} : importer(flag);
  TORCH_CHECK(event.handle != nullptr,
              "Event.record: expected PYTORCH_DEFAULT or BACKEND_DEFAULT, got flag ",
              static_cast<int>(flag));
  return event;
}

orError_t waitForEvent(void* event) {
  return waitInterruptibly([event] { return orEventSynchronize(asEvent(event)); });
}

// Whether the event is complete; see Progress.
orError_t askEvent(void* event) {
  switch (observe(&Observer::eventQuery, event)) {
    case Progress::Pending:
      return orErrorNotReady;
    case Progress::Awaited: {
      const BlockingRegion region;
      return waitForEvent(event);
    }
    case Progress::Asked:
      break;
  }
  return orEventQuery(asEvent(event));
}

bool askStream(const OpenRegStream& stream) {
  const Progress progress = observe(&Observer::streamQuery, stream);
  if (progress == Progress::Awaited) {
    stream.synchronize("torch.Stream.query");
  }
  return progress != Progress::Pending && stream.query("torch.Stream.query");
}

Device makeDevice(DeviceIndex index) { return Device(kDeviceType, index); }

}  // namespace

void setEventImporter(EventImporter importer) { event_importer = importer; }

DeviceType OpenRegGuardImpl::type() const { return kDeviceType; }

Device OpenRegGuardImpl::exchangeDevice(Device device) const {
  TORCH_CHECK(device.type() == kDeviceType, "DeviceGuard: expected a device of type ", kDeviceType,
              ", got ", device);
  return makeDevice(device.has_index() ? exchange_device(device.index()) : current_device());
}

Device OpenRegGuardImpl::getDevice() const { return makeDevice(current_device()); }

void OpenRegGuardImpl::setDevice(Device device) const {
  TORCH_CHECK(device.type() == kDeviceType, "DeviceGuard: expected a device of type ", kDeviceType,
              ", got ", device);
  if (device.has_index()) {
    set_device(device.index());
  }
}

void OpenRegGuardImpl::uncheckedSetDevice(Device device) const noexcept {
  if (device.has_index()) {
    OPENREG_WARN_IF_FAILED(orSetDevice(device.index()));
  }
}

DeviceIndex OpenRegGuardImpl::deviceCount() const noexcept { return c10::openreg::device_count(); }

DeviceCapability OpenRegGuardImpl::getDeviceCapability(Device device) const {
  resolveDeviceIndex(device.index());
  return DeviceCapability();  // every dtype: kernels are the CPU's
}

void OpenRegGuardImpl::synchronizeDevice(DeviceIndex index) const {
  const DeviceIndex device = resolveDeviceIndex(index);
  c10::openreg::synchronizeDevice(device, "torch.accelerator.synchronize");
  observe(&Observer::deviceSynchronization, device);
}

Stream OpenRegGuardImpl::getStream(Device device) const {
  return getCurrentOpenRegStream(device.index());
}

Stream OpenRegGuardImpl::getDefaultStream(Device device) const {
  return getDefaultOpenRegStream(device.index());
}

Stream OpenRegGuardImpl::getStreamFromGlobalPool(Device device, bool isHighPriority) const {
  return getStreamFromPool(isHighPriority ? -1 : 0, device.index());
}

Stream OpenRegGuardImpl::getNewStream(Device device, int priority) const {
  // Streams are copied freely and have no owner, so new streams also come from the pool.
  return getStreamFromPool(priority, device.index());
}

Stream OpenRegGuardImpl::exchangeStream(Stream stream) const {
  const OpenRegStream next(stream);
  const Stream previous = getCurrentOpenRegStream(stream.device_index());
  setCurrentOpenRegStream(next);
  return previous;
}

void* OpenRegGuardImpl::getStreamNativeHandle(Stream stream) const {
  return OpenRegStream(stream).stream();
}

bool OpenRegGuardImpl::queryStream(const Stream& stream) const {
  const OpenRegStream openreg_stream(stream);
  const bool is_done = askStream(openreg_stream);
  if (is_done) {
    observe(&Observer::streamCompletion, openreg_stream);
  }
  return is_done;
}

void OpenRegGuardImpl::synchronizeStream(const Stream& stream) const {
  const OpenRegStream openreg_stream(stream);
  openreg_stream.synchronize("torch.Stream.synchronize");
  observe(&Observer::streamSynchronization, openreg_stream);
}

bool OpenRegGuardImpl::isStreamCapturing(const Stream& stream) const {
  return OpenRegStream(stream).isCapturing();
}

void OpenRegGuardImpl::recordDataPtrOnStream(const DataPtr& data, const Stream& stream) const {
  c10::getDeviceAllocator(kDeviceType)->recordStream(data, stream);
}

void OpenRegGuardImpl::record(void** event, const Stream& stream, DeviceIndex index,
                              EventFlag flag) const {
  TORCH_CHECK(index == -1 || index == stream.device_index(),
              "Event.record: event was created on device ", static_cast<int>(index),
              ", but the stream is on device ", static_cast<int>(stream.device_index()));
  const OpenRegStream openreg_stream(stream);
  const DeviceGuard guard(stream.device());
  orEvent_t handle = asEvent(*event);
  if (handle == nullptr) {
    if (flag == EventFlag::PYTORCH_DEFAULT || flag == EventFlag::BACKEND_DEFAULT) {
      OPENREG_CHECK(orEventCreateWithFlags(
          &handle, flag == EventFlag::BACKEND_DEFAULT ? orEventDefault : orEventDisableTiming));
      *event = handle;
    } else {
      const ImportedEvent imported = importEvent(flag);
      *event = handle = imported.handle;
      if (imported.is_recorded) {
        return;
      }
    }
  }
  OPENREG_CHECK(orEventRecord(handle, openreg_stream.stream()));
  observe(&Observer::eventRecord, handle, openreg_stream);
}

void OpenRegGuardImpl::block(void* event, const Stream& stream) const {
  if (event != nullptr) {
    const OpenRegStream openreg_stream(stream);
    OPENREG_CHECK(orStreamWaitEvent(openreg_stream.stream(), asEvent(event), 0));
    observe(&Observer::eventWait, event, openreg_stream);
  }
}

bool OpenRegGuardImpl::queryEvent(void* event) const {
  if (event == nullptr) {
    return true;
  }
  const orError_t error = askEvent(event);
  if (error == orErrorNotReady) {
    return false;
  }
  OPENREG_CHECK_RESULT(error, "torch.Event.query");
  observe(&Observer::eventCompletion, event);
  return true;
}

void OpenRegGuardImpl::synchronizeEvent(void* event) const {
  if (event != nullptr) {
    OPENREG_CHECK_RESULT(waitForEvent(event), "torch.Event.synchronize");
    observe(&Observer::eventSynchronization, event);
  }
}

double OpenRegGuardImpl::elapsedTime(void* start, void* end, DeviceIndex /*index*/) const {
  TORCH_CHECK(start != nullptr && end != nullptr,
              "Both events must be recorded before calculating elapsed time.");
  float elapsed_ms = 0;
  OPENREG_CHECK_RESULT(orEventElapsedTime(&elapsed_ms, asEvent(start), asEvent(end)),
                       "torch.Event.elapsed_time");
  return elapsed_ms;
}

void OpenRegGuardImpl::destroyEvent(void* event, DeviceIndex /*index*/) const noexcept {
  if (event != nullptr) {
    observe(&Observer::eventDeletion, event);
    OPENREG_WARN_IF_FAILED(orEventDestroy(asEvent(event)));
  }
}

namespace {

// Leaked, because torch keeps the pointer.
const c10::impl::DeviceGuardImplRegistrar registration(kDeviceType, new OpenRegGuardImpl());

}  // namespace

}  // namespace c10::openreg
