// Events that other processes wait for.
//
// c10 of 2.13 knows no such events, so they are torch.openreg.Event's alone.
#pragma once

#include <c10/core/Event.h>

#include <string>

#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// An event, not recorded yet, that eventHandle() accepts.
OPENREG_EXPORT Event makeInterprocessEvent();

// The bytes with which another process opens the event. One that was never recorded is bound to the
// current device.
OPENREG_EXPORT std::string eventHandle(Event& event);

// Opens the event of another process, and binds it to a device.
// Errors: throws a ValueError if the handle has another length, else a RuntimeError.
OPENREG_EXPORT Event openEvent(const std::string& handle, DeviceIndex device);

}  // namespace c10::openreg
