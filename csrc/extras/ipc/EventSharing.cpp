#include "csrc/extras/ipc/EventSharing.h"

#include <openreg/openreg.h>

#include <cstring>

#include "csrc/core/GuardImpl.h"
#include "torch_openreg/core/Exception.h"

namespace c10::openreg {

Event makeInterprocessEvent() { return Event(kDeviceType, kInterprocessEvent); }

std::string eventHandle(Event& event) {
  if (event.eventId() == nullptr) {
    orEvent_t made = nullptr;
    OPENREG_CHECK(orEventCreateWithFlags(&made, orEventDisableTiming | orEventInterprocess));
    event = wrapEvent(made, current_device());
  }
  orIpcEventHandle_t handle;
  OPENREG_CHECK(orIpcGetEventHandle(&handle, static_cast<orEvent_t>(event.eventId())));
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

Event openEvent(const std::string& bytes, DeviceIndex device) {
  orIpcEventHandle_t handle;
  TORCH_CHECK_VALUE(bytes.size() == sizeof(handle), "opening an event: expected a handle of ",
                    sizeof(handle), " bytes, got ", bytes.size());
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  check_device_index(device);
  orEvent_t opened = nullptr;
  OPENREG_CHECK(orIpcOpenEventHandle(&opened, handle));
  return wrapEvent(opened, device);
}

}  // namespace c10::openreg
