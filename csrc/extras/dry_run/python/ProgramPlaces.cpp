#include "csrc/extras/dry_run/python/ProgramPlaces.h"

#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace torch_openreg {
namespace {

namespace py = pybind11;

struct Place {
  std::string file;
  int line = 0;

  std::string text() const { return file.empty() ? file : file + ":" + std::to_string(line); }
};

// Guarded by the GIL. Leaked: values are read while the interpreter ends.
std::vector<std::string>& foreignFiles() {
  static auto* const instance = new std::vector<std::string>;
  return *instance;
}

bool isForeign(std::string_view file) {
  const std::vector<std::string>& foreign = foreignFiles();
  return file.starts_with("<frozen ") || file.find("site-packages") != file.npos ||
         file.find("dist-packages") != file.npos ||
         std::any_of(foreign.begin(), foreign.end(),
                     [&](const std::string& prefix) { return file.starts_with(prefix); });
}

// The innermost frame of the program, or the innermost one at all.
Place currentPlace() {
  Place innermost;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    Place place{py::str(code.attr("co_filename")), PyFrame_GetLineNumber(frame)};
    Py_DECREF(std::exchange(frame, PyFrame_GetBack(frame)));
    if (!isForeign(place.file)) {
      Py_XDECREF(frame);
      return place;
    }
    if (innermost.file.empty()) {
      innermost = std::move(place);
    }
  }
  return innermost;
}

void warn(const std::string& text, const Place& place) {
  const py::str file(place.file.empty() ? "<unknown>" : place.file);
  if (PyErr_WarnExplicitObject(PyExc_UserWarning, py::str(text).ptr(), file.ptr(), place.line,
                               nullptr, nullptr) != 0) {
    python_error error;
    error.persist();
    throw error;
  }
}

bool hasPython() { return Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr; }

}  // namespace

void ProgramPlaces::note(const char* kernel, const char* what) {
  if (!hasPython()) {
    return;
  }
  const py::gil_scoped_acquire acquired;
  const Place place = currentPlace();
  if (++counts_[{kernel, place.text()}] == 1) {
    warn(std::string("dry run: ") + kernel + what, place);
  }
}

py::list ProgramPlaces::all() const {
  py::list all;
  for (const auto& [read, count] : counts_) {
    all.append(py::make_tuple(read.first, read.second, count));
  }
  return all;
}

void setForeignFiles(const py::tuple& prefixes) {
  for (const py::handle prefix : prefixes) {
    foreignFiles().push_back(py::str(prefix));
  }
}

}  // namespace torch_openreg
