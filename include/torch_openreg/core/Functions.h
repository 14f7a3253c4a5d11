// Devices for c10: their number, the current device, checks of an index.
//
// There are two levels. Functions in snake case, such as set_device(), check the index and throw;
// the backend calls these. Functions in camel case with a capital, such as SetDevice(), forward to
// the driver: those that return an orError_t do not throw.
//
// The runtime stores each thread's current device; this code has no state.
//
// Unless a function says otherwise, in all headers of this folder: any thread may call; the GIL is
// neither needed nor released; calls are allowed while streams capture and are not part of the
// graph; errors are thrown as described in Exception.h. Functions that need a device throw in a
// forked child.
#pragma once

#include <c10/core/Device.h>
#include <openreg/error.h>

#include <cstddef>

#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// Number of visible devices. Returns 0 and does not throw if a setting is invalid;
// ensureHasDevice() then reports the reason. Creates no device.
OPENREG_EXPORT DeviceIndex device_count() noexcept;

// Throws, with the reason, if no device is available.
OPENREG_EXPORT void ensureHasDevice();

// Throws if the process cannot use devices. Creates none: torch's Context calls this when it seeds,
// and a program that has only seeded may still fork.
// Errors: as ensureHasDevice(); RuntimeError if OPENREG_DEVICE_TYPE has changed since the library
// was loaded.
OPENREG_EXPORT void checkInitialization();

// As checkInitialization(); in addition, marks the process as one that uses devices, so that
// children that it forks cannot use them. Creates no device: each is created by its first use.
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
// is then the current device.
OPENREG_EXPORT DeviceIndex maybe_exchange_device(DeviceIndex index);

// The driver's functions, with its error codes. On error, no output is written.
[[nodiscard]] OPENREG_EXPORT orError_t GetDeviceCount(int* count) noexcept;
[[nodiscard]] OPENREG_EXPORT orError_t GetDevice(DeviceIndex* index) noexcept;
[[nodiscard]] OPENREG_EXPORT orError_t SetDevice(DeviceIndex index) noexcept;

// As SetDevice(), but does nothing if the device is already current; returns the previous device.
// Errors: throws the driver's error.
OPENREG_EXPORT DeviceIndex ExchangeDevice(DeviceIndex index);

// As ExchangeDevice(); a negative index changes nothing, and the result is the current device.
OPENREG_EXPORT DeviceIndex MaybeExchangeDevice(DeviceIndex index);

// The index itself, or the current device for -1. Throws if it is out of range.
OPENREG_EXPORT DeviceIndex resolveDeviceIndex(int64_t index);

// Waits for all work of the given device. Does not release the GIL: the caller must have done so.
// `caller` is used in error texts. Capture: an error while any stream of the device captures, which
// invalidates the capture. Errors: the first asynchronous error of the device's streams, which is
// cleared on all of them.
OPENREG_EXPORT void synchronizeDevice(DeviceIndex index,
                                      const char* caller = "orDeviceSynchronizeIndex");

// The device addresses of all memory of a device, allocated or not. Kernels use other addresses.
// Constant from the creation of the first device on; creates the current one if there is none.
struct AddressRange {
  const void* begin;
  size_t size;
};
OPENREG_EXPORT AddressRange addressRange(DeviceIndex index);

// Whether the device has been created in this process.
OPENREG_EXPORT bool isDeviceActive(DeviceIndex index) noexcept;

// Whether this process was forked from one that had used a device.
OPENREG_EXPORT bool isInBadFork() noexcept;

}  // namespace c10::openreg
