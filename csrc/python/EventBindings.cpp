#include <pybind11/pybind11.h>
#include <torch/csrc/Event.h>

#include "csrc/python/Bindings.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;

// As torch.Event.elapsed_time, which rejects instances of subclasses.
double elapsedTime(py::handle start, py::handle end) {
  return asEvent(start, "elapsed_time").elapsedTime(asEvent(end, "elapsed_time"));
}

}  // namespace

c10::Event& asEvent(py::handle object, const char* operation) {
  if (!PyObject_TypeCheck(object.ptr(), THPEventClass)) {
    throw py::type_error(c10::str(operation, ": expected a torch.Event"));
  }
  return reinterpret_cast<THPEvent*>(object.ptr())->event;
}

namespace {

void bindEvent(py::module_& m) {
  // docs: bindings-event
  m.def("_event_elapsed_time", &elapsedTime);
  // docs: end
}

const Bindings kEventBindings(&bindEvent);

}  // namespace

}  // namespace torch_openreg
