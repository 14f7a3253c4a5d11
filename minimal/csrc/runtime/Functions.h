// Step 2 of docs/bring_up.md, devices. In full: csrc/core/Functions.cpp.
#pragma once

#include <Python.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <openreg/openreg.h>

namespace chip {

using c10::Device, c10::DeviceIndex, c10::Stream, c10::StreamId;

// docs: minimal-name
inline constexpr char kName[] = "minimal";  // what Python calls the device: the one place in C++
inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;  // what torch calls it
// docs: end

// Raises the driver's error, if there is one.
inline void check(orError_t error) {
  TORCH_CHECK(error == orSuccess, kName, ": ", orGetErrorName(error), ": ", orGetErrorString(error),
              ". ", orGetLastErrorMessage());
}

// Every call of the driver that waits goes through here: other Python threads run meanwhile. Some
// of torch's bindings have released the GIL, Python's global lock; others have not.
template <typename Call>
void wait(const Call& call) {
  PyThreadState* state = Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  const orError_t error = call();
  if (state != nullptr) PyEval_RestoreThread(state);
  check(error);
}

// docs: minimal-functions
// The current device, one for each thread, at first 0. A vendor's driver has the same under its own
// names, and perhaps an exchange.
inline DeviceIndex device_count() noexcept {
  int count = 0;
  return orGetDeviceCount(&count) == orSuccess ? static_cast<DeviceIndex>(count) : 0;
}
inline DeviceIndex current_device() {
  int device = 0;
  check(orGetDevice(&device));
  return static_cast<DeviceIndex>(device);
}
inline void set_device(DeviceIndex device) { check(orSetDevice(device)); }
inline DeviceIndex exchange_device(DeviceIndex device) {
  const DeviceIndex before = current_device();
  set_device(device);
  return before;
}

// Exchanges if the index is valid.
inline DeviceIndex maybe_exchange_device(DeviceIndex device) {
  return device >= 0 && device < device_count() ? exchange_device(device) : current_device();
}
// docs: end

// A child of a process that used the driver cannot use it.
inline bool isInBadFork() {
  int is_forked = 0;
  return orIsForkedChild(&is_forked) == orSuccess && is_forked != 0;
}

}  // namespace chip
