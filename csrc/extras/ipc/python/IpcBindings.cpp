#include <torch/csrc/utils/pybind.h>

#include "csrc/extras/ipc/EventSharing.h"
#include "csrc/extras/ipc/StorageSharing.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Functions.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace c10::openreg;

// Sharing and receiving may wait for room in a stream's queue, so they run without the GIL.
py::bytes share(const at::Storage& storage) {
  return withoutGil([&] { return shareStorage(storage); });
}

at::Storage receive(const py::bytes& message) {
  const std::string bytes = message;
  return withoutGil([&] { return receiveStorage(bytes); });
}

void bindIpc(py::module_& m) {
  // docs: bindings-ipc
  m.def("_share_storage", &share);
  m.def("_receive_storage", &receive);
  m.def("_is_received_storage", &isReceived);
  m.def("_collect_shared", &collectShared, ReleaseGil());
  m.def("_event_make_interprocess",
        [](py::handle event) { asEvent(event, "Event") = makeInterprocessEvent(); });
  m.def("_event_ipc_handle",
        [](py::handle event) { return py::bytes(eventHandle(asEvent(event, "ipc_handle"))); });
  m.def("_event_open_ipc_handle", [](py::handle event, int64_t device, const std::string& handle) {
    asEvent(event, "from_ipc_handle") = openEvent(handle, resolveDeviceIndex(device));
  });
  // docs: end
}

const Bindings kIpcBindings(&bindIpc);

}  // namespace

}  // namespace torch_openreg
