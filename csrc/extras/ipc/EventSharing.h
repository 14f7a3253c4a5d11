// Events that other processes can wait for.
//
// c10 of 2.13 has no such events, so only torch.openreg.Event offers them.
#pragma once

#include <c10/core/Event.h>
#include <openreg/event.h>

#include <string>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Wraps an event of the runtime in a new c10::Event on a device, as if that had recorded it. Takes
// ownership of the handle, which may be an event of another process.
OPENREG_EXPORT Event wrapEvent(orEvent_t handle, DeviceIndex device);

// A new event, not recorded yet, for eventHandle().
OPENREG_EXPORT Event makeInterprocessEvent();

// The bytes with which another process opens the event. An event that was never recorded is bound
// to the current device.
OPENREG_EXPORT std::string eventHandle(Event& event);

// Opens an event of another process, and binds it to a device.
// Errors: ValueError if the handle has a wrong length, otherwise RuntimeError.
OPENREG_EXPORT Event openEvent(const std::string& handle, DeviceIndex device);

}  // namespace c10::openreg
