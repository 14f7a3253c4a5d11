#include "csrc/extras/ipc/EventSharing.h"

#include <c10/util/ScopeExit.h>
#include <openreg/openreg.h>

#include <cstring>
#include <utility>

#include "csrc/core/GuardImpl.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {
namespace {

// The flag of an event that can be shared with other processes. c10 has no such flag in 2.13.
constexpr EventFlag kInterprocessEvent = static_cast<EventFlag>(0x100);

// Note [Wrapping events]
// A c10::Event can only get its handle from the guard's record(). To wrap a handle of the runtime,
// wrapEvent() stores it here and calls record(): the event takes the handle and records nothing.
thread_local orEvent_t wrapped_event = nullptr;

ImportedEvent importEvent(EventFlag flag) {
  if (flag != kInterprocessEvent) {
    return {};
  }
  if (wrapped_event != nullptr) {
    return {std::exchange(wrapped_event, nullptr), /*is_recorded=*/true};
  }
  ImportedEvent made;
  OPENREG_CHECK(orEventCreateWithFlags(&made.handle, orEventDisableTiming | orEventInterprocess));
  return made;
}

[[maybe_unused]] const bool is_installed = [] {
  setEventImporter(&importEvent);
  return true;
}();

}  // namespace

// See Note [Wrapping events].
Event wrapEvent(orEvent_t handle, DeviceIndex device) {
  Event event(kDeviceType, kInterprocessEvent);
  const Stream stream = getDefaultOpenRegStream(device);
  wrapped_event = handle;
  const auto forget = c10::make_scope_exit([] { wrapped_event = nullptr; });
  event.record(stream);
  return event;
}

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
