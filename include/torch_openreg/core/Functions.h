// Devices, as c10 sees them: their number, the current one, checks of an index.
//
// The runtime keeps each thread's current device; nothing is kept here.
//
// Unless a function says otherwise, in the headers of this folder: any thread may call; the GIL is
// neither needed nor released; calls are allowed while streams capture and are no part of the
// graph; errors are thrown as Exception.h says. What needs a device throws in a forked child.
#pragma once

#include <c10/core/Device.h>

#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Number of visible devices. 0, never an exception, if a setting is bad; the reason then comes
// from ensureHasDevice(). Creates no device.
OPENREG_EXPORT DeviceIndex deviceCount() noexcept;

// Throws, with the reason, if there is no device to use.
OPENREG_EXPORT void ensureHasDevice();

// Creates the current device, which is otherwise created by its first use.
// Errors: as ensureHasDevice(); RuntimeError if OPENREG_DEVICE_TYPE has changed since the library
// was loaded.
OPENREG_EXPORT void initialize();

// Throws unless 0 <= index < deviceCount().
OPENREG_EXPORT void checkDeviceIndex(int64_t index);

OPENREG_EXPORT DeviceIndex currentDevice();
OPENREG_EXPORT void setDevice(DeviceIndex index);

// Sets the current device and returns the previous one.
OPENREG_EXPORT DeviceIndex exchangeDevice(DeviceIndex index);

// As exchangeDevice; a negative index changes nothing.
OPENREG_EXPORT DeviceIndex maybeExchangeDevice(DeviceIndex index);

// The index itself, or the current device for a negative one. Throws if it is out of range.
OPENREG_EXPORT DeviceIndex resolveDeviceIndex(int64_t index);

// Waits for all work of the given device. Does not release the GIL: the caller has done so.
// `caller` is who waits, for error texts. Capture: an error while any stream of the device
// captures, and the capture is invalid then. Errors: the first asynchronous error of the device's
// streams, which it clears from all of them.
OPENREG_EXPORT void synchronizeDevice(DeviceIndex index,
                                      const char* caller = "orDeviceSynchronizeIndex");

// Whether the device has been created in this process.
OPENREG_EXPORT bool isDeviceActive(DeviceIndex index) noexcept;

// Whether this process was forked from one that had used a device.
OPENREG_EXPORT bool isInBadFork() noexcept;

}  // namespace c10::openreg
