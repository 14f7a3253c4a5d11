// Devices, as c10 sees them: their number, the current one, checks of an index.
//
// There are two levels. Functions in snake case, such as set_device(), check the index and throw;
// the backend calls these. Functions in camel case with a capital, such as SetDevice(), call the
// driver as it is: what returns an orError_t does not throw.
//
// The runtime keeps each thread's current device; nothing is kept here.
//
// Unless a function says otherwise, in the headers of this folder: any thread may call; the GIL is
// neither needed nor released; calls are allowed while streams capture and are no part of the
// graph; errors are thrown as Exception.h says. What needs a device throws in a forked child.
#pragma once

#include <c10/core/Device.h>
#include <openreg/error.h>

#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Number of visible devices. 0, never an exception, if a setting is bad; the reason then comes
// from ensureHasDevice(). Creates no device.
OPENREG_EXPORT DeviceIndex device_count() noexcept;

// Throws, with the reason, if there is no device to use.
OPENREG_EXPORT void ensureHasDevice();

// Throws if the process cannot use devices. Creates none: seeding comes by here, through torch's
// Context, and a program that has only been seeded may still fork.
// Errors: as ensureHasDevice(); RuntimeError if OPENREG_DEVICE_TYPE has changed since the library
// was loaded.
OPENREG_EXPORT void checkInitialization();

// As checkInitialization(); then the process counts as one that uses devices, so that a child that
// it forks cannot. Creates none: each is created by its first use.
OPENREG_EXPORT void initialize();

// Throws unless 0 <= index < device_count().
OPENREG_EXPORT void check_device_index(int64_t index);

OPENREG_EXPORT DeviceIndex current_device();

// Makes a device current for the calling thread. Creates no device.
// Errors: as check_device_index().
OPENREG_EXPORT void set_device(DeviceIndex index);

// As set_device(); returns the previous device.
OPENREG_EXPORT DeviceIndex exchange_device(DeviceIndex index);

// As exchange_device(), but an index that is negative or out of range changes nothing: the result
// then is the current device.
OPENREG_EXPORT DeviceIndex maybe_exchange_device(DeviceIndex index);

// The driver's answers, with its error codes. On error, no output is written.
[[nodiscard]] OPENREG_EXPORT orError_t GetDeviceCount(int* count) noexcept;
[[nodiscard]] OPENREG_EXPORT orError_t GetDevice(DeviceIndex* index) noexcept;
[[nodiscard]] OPENREG_EXPORT orError_t SetDevice(DeviceIndex index) noexcept;

// As SetDevice(), which it skips if the device is current already; returns the previous device.
// Errors: throws the driver's.
OPENREG_EXPORT DeviceIndex ExchangeDevice(DeviceIndex index);

// As ExchangeDevice(); a negative index changes nothing, and the result is the current device.
OPENREG_EXPORT DeviceIndex MaybeExchangeDevice(DeviceIndex index);

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
