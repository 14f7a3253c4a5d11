#include <torch/csrc/Event.h>

#include "csrc/python/Bindings.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;

const c10::Event& asEvent(py::handle object) {
  if (!PyObject_TypeCheck(object.ptr(), THPEventClass)) {
    throw py::type_error("elapsed_time: expected a torch.Event");
  }
  return reinterpret_cast<THPEvent*>(object.ptr())->event;
}

// As torch.Event.elapsed_time, which refuses instances of subclasses.
double elapsedTime(py::handle start, py::handle end) {
  return asEvent(start).elapsedTime(asEvent(end));
}

}  // namespace

void bindEvent(py::module& m) {
  // docs: bindings-event
  m.def("_event_elapsed_time", &elapsedTime);
  // docs: end
}

}  // namespace torch_openreg
