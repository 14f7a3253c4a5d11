// Gives tests in Python the device type's C++ interfaces as they are: every virtual of
// c10::impl::DeviceGuardImplInterface and of the two hooks interfaces, and c10's guards and event.
//
// One function per virtual, no logic; what they have to do is said by test/core/test_guard_cpp.py
// and test/core/test_hooks.py. An event handle travels as a number, a null handle as 0.

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

// From csrc/core/GuardImpl.h, which is not installed.
struct orEvent;
namespace c10::openreg {
c10::Event wrapEvent(orEvent* handle, DeviceIndex device);
}

namespace {

namespace py = pybind11;

using c10::Device;
using c10::DeviceIndex;
using c10::EventFlag;
using c10::Stream;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

const c10::impl::DeviceGuardImplInterface& guard() { return *c10::impl::getDeviceGuardImpl(kType); }

// The same object, found in the two ways in which torch finds it.
const at::AcceleratorHooksInterface& acceleratorHooks() {
  return at::globalContext().getAcceleratorHooksInterface(kType);
}

const at::PrivateUse1HooksInterface& hooks() { return at::detail::getPrivateUse1Hooks(); }

void* asEvent(uintptr_t event) { return reinterpret_cast<void*>(event); }

uintptr_t record(uintptr_t event, const Stream& stream, DeviceIndex index, EventFlag flag) {
  void* handle = asEvent(event);
  guard().record(&handle, stream, index, flag);
  return reinterpret_cast<uintptr_t>(handle);
}

// Calls a Python function while a guard of the type named is alive; returns what it returned.
template <typename Guard, typename... Args>
py::object within(const py::function& function, Args&&... args) {
  const Guard scope(std::forward<Args>(args)...);
  return function();
}

void bindGuard(py::module& m) {
  m.def("type", [] { return c10::DeviceTypeName(guard().type(), /*lower_case=*/true); });
  m.def("exchange_device", [](Device device) { return guard().exchangeDevice(device); });
  m.def("get_device", [] { return guard().getDevice(); });
  m.def("set_device", [](Device device) { guard().setDevice(device); });
  // Wrapped, so that a warning becomes Python's.
  m.def("unchecked_set_device",
        torch::wrap_pybind_function([](Device device) { guard().uncheckedSetDevice(device); }));
  m.def("device_count", [] { return guard().deviceCount(); });
  m.def("get_device_capability", [](Device device) {
    std::vector<c10::ScalarType> types;
    guard().getDeviceCapability(device).forEachSupportedScalarType(
        [&](c10::ScalarType type) { types.push_back(type); });
    return types;
  });
  m.def(
      "synchronize_device", [](DeviceIndex index) { guard().synchronizeDevice(index); },
      ReleaseGil());

  m.def("get_stream", [](Device device) { return guard().getStream(device); });
  m.def("get_default_stream", [](Device device) { return guard().getDefaultStream(device); });
  m.def("get_stream_from_global_pool", [](Device device, bool is_high_priority) {
    return guard().getStreamFromGlobalPool(device, is_high_priority);
  });
  m.def("get_new_stream",
        [](Device device, int priority) { return guard().getNewStream(device, priority); });
  m.def("exchange_stream", [](Stream stream) { return guard().exchangeStream(stream); });
  m.def("get_stream_native_handle", [](Stream stream) {
    return reinterpret_cast<uintptr_t>(guard().getStreamNativeHandle(stream));
  });
  m.def("query_stream", [](Stream stream) { return guard().queryStream(stream); });
  m.def(
      "synchronize_stream", [](Stream stream) { guard().synchronizeStream(stream); }, ReleaseGil());
  m.def("is_stream_capturing", [](Stream stream) { return guard().isStreamCapturing(stream); });
  m.def("record_data_ptr_on_stream", [](const at::Tensor& tensor, Stream stream) {
    guard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  });
  m.def("record_host_data_ptr_on_stream",
        [](Stream stream) { guard().recordDataPtrOnStream(c10::DataPtr(), stream); });

  py::enum_<EventFlag>(m, "EventFlag")
      .value("PYTORCH_DEFAULT", EventFlag::PYTORCH_DEFAULT)
      .value("BACKEND_DEFAULT", EventFlag::BACKEND_DEFAULT)
      .value("INVALID", EventFlag::INVALID);
  m.def("record", &record);
  m.def("block", [](uintptr_t event, Stream stream) { guard().block(asEvent(event), stream); });
  m.def("query_event", [](uintptr_t event) { return guard().queryEvent(asEvent(event)); });
  m.def(
      "synchronize_event", [](uintptr_t event) { guard().synchronizeEvent(asEvent(event)); },
      ReleaseGil());
  m.def("elapsed_time", [](uintptr_t start, uintptr_t end, DeviceIndex index) {
    return guard().elapsedTime(asEvent(start), asEvent(end), index);
  });
  m.def("wrap_event", [](uintptr_t event, DeviceIndex device) {
    c10::openreg::wrapEvent(reinterpret_cast<orEvent*>(event), device);
  });
  m.def("destroy_event",
        [](uintptr_t event, DeviceIndex index) { guard().destroyEvent(asEvent(event), index); });
}

void bindAllocator(py::module& m) {
  m.def("raw_allocate", [](size_t size) {
    return reinterpret_cast<uintptr_t>(c10::GetAllocator(kType)->raw_allocate(size));
  });
  m.def("raw_deallocate", [](uintptr_t address) {
    c10::GetAllocator(kType)->raw_deallocate(reinterpret_cast<void*>(address));
  });
}

void bindScopes(py::module& m) {
  // On a thread of C++, which does not have the GIL; the caller has it meanwhile.
  m.def("use_device_without_gil", [](DeviceIndex index) {
    std::thread([index] { guard().getStream(Device(kType, index)); }).join();
  });

  m.def("within_device_guard", [](Device device, const py::function& function) {
    return within<c10::DeviceGuard>(function, device);
  });
  m.def("within_optional_device_guard",
        [](std::optional<Device> device, const py::function& function) {
          return within<c10::OptionalDeviceGuard>(function, device);
        });
  m.def("within_stream_guard", [](Stream stream, const py::function& function) {
    return within<c10::StreamGuard>(function, stream);
  });
  m.def("within_multi_stream_guard",
        [](const std::vector<Stream>& streams, const py::function& function) {
          return within<c10::MultiStreamGuard>(function, c10::ArrayRef<Stream>(streams));
        });
  py::class_<c10::Event>(m, "Event")
      .def(py::init([](EventFlag flag) { return std::make_unique<c10::Event>(kType, flag); }))
      .def("device", [](const c10::Event& event) { return event.device(); })
      .def("is_marked_for_recording", &c10::Event::was_marked_for_recording)
      .def("record", &c10::Event::record)
      .def("record_once", &c10::Event::recordOnce)
      .def("block", &c10::Event::block)
      .def("query", &c10::Event::query)
      .def("synchronize", &c10::Event::synchronize, ReleaseGil())
      .def("elapsed_time", &c10::Event::elapsedTime);
}

void bindHooks(py::module& m) {
  m.def("are_hooks_one_object", [] {
    return static_cast<const at::AcceleratorHooksInterface*>(&hooks()) == &acceleratorHooks();
  });
  m.def("hooks_is_built", [] { return acceleratorHooks().isBuilt(); });
  m.def("hooks_is_available", [] { return acceleratorHooks().isAvailable(); });
  m.def("hooks_has_primary_context",
        [](DeviceIndex index) { return acceleratorHooks().hasPrimaryContext(index); });
  m.def("hooks_init", [] { acceleratorHooks().init(); });
  m.def("hooks_device_count", [] { return acceleratorHooks().deviceCount(); });
  m.def("hooks_set_current_device",
        [](DeviceIndex index) { acceleratorHooks().setCurrentDevice(index); });
  m.def("hooks_get_current_device", [] { return acceleratorHooks().getCurrentDevice(); });
  m.def("hooks_exchange_device",
        [](DeviceIndex index) { return acceleratorHooks().exchangeDevice(index); });
  m.def("hooks_maybe_exchange_device",
        [](DeviceIndex index) { return acceleratorHooks().maybeExchangeDevice(index); });
  m.def("hooks_is_pinned_ptr", [](uintptr_t address) {
    return acceleratorHooks().isPinnedPtr(reinterpret_cast<const void*>(address));
  });
  m.def("hooks_pinned_allocator_makes_pinned_memory", [](size_t size) {
    const c10::DataPtr data = acceleratorHooks().getPinnedMemoryAllocator()->allocate(size);
    return data.device().is_cpu() && acceleratorHooks().isPinnedPtr(data.get());
  });
  m.def("hooks_get_device_from_ptr", [](uintptr_t address) {
    return acceleratorHooks().getDeviceFromPtr(reinterpret_cast<void*>(address));
  });
  m.def("hooks_get_default_generator",
        [](DeviceIndex index) { return acceleratorHooks().getDefaultGenerator(index); });
  m.def("hooks_get_new_generator",
        [](DeviceIndex index) { return acceleratorHooks().getNewGenerator(index); });
  m.def("hooks_resize_bytes", [](const at::Tensor& tensor, size_t size) {
    hooks().resizePrivateUse1Bytes(tensor.storage(), size);
  });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  bindGuard(m);
  bindAllocator(m);
  bindScopes(m);
  bindHooks(m);
}
