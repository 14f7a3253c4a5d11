// Streams, their schedule, and what torch's own events lack.

#include <c10/core/DeviceGuard.h>
#include <openreg/openreg.h>
#include <openreg/schedule.h>
#include <pybind11/stl.h>
#include <torch/csrc/Event.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>

#include "csrc/core/SyncDebug.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Launch.h"
#include "torch_openreg/core/Stream.h"

namespace torch_openreg {

namespace py = pybind11;
using namespace c10::openreg;

OpenRegStream unpackStream(int64_t id, int64_t index, int64_t type) {
  return OpenRegStream(c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(index),
                                            static_cast<c10::DeviceType>(type)));
}

c10::Event& asEvent(py::handle object, const char* operation) {
  if (!PyObject_TypeCheck(object.ptr(), THPEventClass)) {
    throw py::type_error(c10::str(operation, ": expected a torch.Event"));
  }
  return reinterpret_cast<THPEvent*>(object.ptr())->event;
}

namespace {

using Triple = std::tuple<int64_t, int64_t, int64_t>;

Triple pack(const OpenRegStream& stream) {
  const c10::StreamData3 data = stream.unwrap().pack3();
  return {data.stream_id, data.device_index, static_cast<int64_t>(data.device_type)};
}

Triple externalStream(uintptr_t handle, int64_t device) {
  return pack(
      getStreamFromExternal(reinterpret_cast<orStream_t>(handle), resolveDeviceIndex(device)));
}

uintptr_t createExternalStream(int priority, int64_t device) {
  orStream_t stream = nullptr;
  const c10::DeviceGuard guard(c10::Device(kDeviceType, resolveDeviceIndex(device)));
  OPENREG_CHECK(orStreamCreateWithPriority(&stream, orStreamNonBlocking, priority));
  return reinterpret_cast<uintptr_t>(stream);
}

void destroyExternalStream(uintptr_t handle) {
  OPENREG_CHECK(orStreamValidate(handle));
  OPENREG_CHECK(orStreamDestroy(reinterpret_cast<orStream_t>(handle)));
}

std::tuple<int, int> priorityRange() {
  int least = 0;
  int greatest = 0;
  OPENREG_CHECK(orDeviceGetStreamPriorityRange(&least, &greatest));
  return {least, greatest};
}

// A cycle is a nanosecond.
void sleepOnStream(int64_t cycles) {
  launchKernel<"sleep">(getCurrentOpenRegStream(), [duration = std::chrono::nanoseconds(cycles)] {
    std::this_thread::sleep_for(duration);
  });
}

void setSyncDebug(int mode) {
  TORCH_CHECK_VALUE(mode >= 0 && mode <= 2,
                    "set_sync_debug_mode: expected 0 (default), 1 (warn) or 2 (error), got ", mode);
  setSyncDebugMode(static_cast<SyncDebugMode>(mode));
}

std::string getSchedule() {
  std::array<char, OPENREG_SCHEDULE_SIZE> text{};
  OPENREG_CHECK(orGetSchedule(text.data(), text.size()));
  return text.data();
}

void setSchedule(const std::string& schedule) { OPENREG_CHECK(orSetSchedule(schedule.c_str())); }

// As torch.Event.elapsed_time, which rejects instances of subclasses.
double elapsedTime(py::handle start, py::handle end) {
  return asEvent(start, "elapsed_time").elapsedTime(asEvent(end, "elapsed_time"));
}

void bindStream(py::module_& m) {
  // docs: bindings-stream
  m.def("_current_stream",
        [](int64_t device) { return pack(getCurrentOpenRegStream(resolveDeviceIndex(device))); });
  m.def("_default_stream",
        [](int64_t device) { return pack(getDefaultOpenRegStream(resolveDeviceIndex(device))); });
  m.def("_stream_from_pool", [](int priority, int64_t device) {
    return pack(getStreamFromPool(priority, resolveDeviceIndex(device)));
  });
  m.def("_external_stream", &externalStream);
  m.def("_create_external_stream", &createExternalStream);
  m.def("_destroy_external_stream", &destroyExternalStream);
  m.def("_set_stream", [](int64_t id, int64_t index, int64_t type) {
    setCurrentOpenRegStream(unpackStream(id, index, type));
  });
  m.def("_stream_priority", [](int64_t id, int64_t index, int64_t type) {
    return unpackStream(id, index, type).priority();
  });
  m.def("_stream_priority_range", &priorityRange);
  m.def("_sleep", &sleepOnStream);
  m.def("_sync_debug_mode", [] { return static_cast<int>(syncDebugMode()); });
  m.def("_set_sync_debug_mode", &setSyncDebug);
  m.def("_is_stream_capturing", [](int64_t id, int64_t index, int64_t type) {
    return unpackStream(id, index, type).isCapturing();
  });
  // docs: end
  // docs: bindings-event
  m.def("_event_elapsed_time", &elapsedTime);
  // docs: end
  m.def("_get_schedule", &getSchedule);
  m.def("_set_schedule", &setSchedule, py::arg("schedule"), ReleaseGil());
}

const Bindings kStreamBindings(&bindStream);

}  // namespace

}  // namespace torch_openreg
