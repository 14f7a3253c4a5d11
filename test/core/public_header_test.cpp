// Every name that PyTorch's pages for integrators of accelerators use, by the one header that has
// them. test/core/test_public_header.py calls the functions and says what they have to do.

#include <torch/csrc/utils/pybind.h>
#include <torch_openreg/OpenReg.h>

#include <optional>
#include <sstream>
#include <utility>

namespace {

namespace py = pybind11;
using namespace c10::openreg;
using c10::DeviceIndex;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

int getDeviceCount() {
  int count = -1;
  TORCH_CHECK(GetDeviceCount(&count) == orSuccess);
  return count;
}

DeviceIndex getDevice() {
  DeviceIndex index = -1;
  TORCH_CHECK(GetDevice(&index) == orSuccess);
  return index;
}

void bindDevices(py::module& m) {
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_device);
  m.def("exchange_device", &exchange_device);
  m.def("maybe_exchange_device", &maybe_exchange_device);
  m.def("check_device_index", &check_device_index);
  m.def("GetDeviceCount", &getDeviceCount);
  m.def("GetDevice", &getDevice);
  m.def("SetDevice", [](DeviceIndex index) { return static_cast<int>(SetDevice(index)); });
  m.def("ExchangeDevice", &ExchangeDevice);
  m.def("MaybeExchangeDevice", &MaybeExchangeDevice);
}

void bindGenerators(py::module& m) {
  m.def("getDefaultOpenRegGenerator", [](DeviceIndex index) {
    return index < 0 ? getDefaultOpenRegGenerator() : getDefaultOpenRegGenerator(index);
  });
  m.def("createOpenRegGenerator", [](DeviceIndex index) { return createOpenRegGenerator(index); });
}

void bindStreams(py::module& m) {
  m.def("stream_of_bool", [](bool is_high_priority, DeviceIndex index) {
    return getStreamFromPool(is_high_priority, index).unwrap();
  });
  m.def("stream_of_priority", [](int priority, DeviceIndex index) {
    return getStreamFromPool(priority, index).unwrap();
  });
  m.def("stream_of_defaults", [] { return getStreamFromPool().unwrap(); });
  m.def("describe", [](c10::Stream stream) {
    std::ostringstream text;
    text << OpenRegStream(stream);
    return text.str();
  });
  m.def("is_stream_consistent", [](c10::Stream unwrapped) {
    const OpenRegStream stream(unwrapped);
    const orStream_t handle = stream;
    const c10::StreamData3 packed = stream.pack3();
    const OpenRegStream again =
        OpenRegStream::unpack3(packed.stream_id, packed.device_index, packed.device_type);
    return handle == stream.stream() && handle != nullptr && stream.query() &&
           stream.device_type() == unwrapped.device_type() && again == stream &&
           stream.priority() <= 0;
  });
}

void bindEvents(py::module& m) {
  py::class_<OpenRegEvent>(m, "OpenRegEvent")
      .def(py::init([](bool enable_timing) { return OpenRegEvent(enable_timing); }))
      .def("isCreated", &OpenRegEvent::isCreated)
      .def("device", [](const OpenRegEvent& event) { return event.device(); })
      .def("device_index", &OpenRegEvent::device_index)
      .def("has_event",
           [](const OpenRegEvent& event) {
             const orEvent_t handle = event;
             return handle == event.event() && handle != nullptr;
           })
      .def("record", [](OpenRegEvent& event) { event.record(); })
      .def("record",
           [](OpenRegEvent& event, c10::Stream stream) { event.record(OpenRegStream(stream)); })
      .def("recordOnce",
           [](OpenRegEvent& event, c10::Stream stream) { event.recordOnce(OpenRegStream(stream)); })
      .def("block", [](const OpenRegEvent& event,
                       c10::Stream stream) { event.block(OpenRegStream(stream)); })
      .def("query", &OpenRegEvent::query)
      .def("synchronize", &OpenRegEvent::synchronize, ReleaseGil())
      .def("elapsed_time", &OpenRegEvent::elapsed_time)
      .def("is_moved", [](OpenRegEvent& event) {
        OpenRegEvent other(std::move(event));
        const bool has_moved = other.isCreated() && !event.isCreated();
        event = std::move(other);
        return has_moved && event.isCreated() && !other.isCreated();
      });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  bindDevices(m);
  bindGenerators(m);
  bindStreams(m);
  bindEvents(m);
}
