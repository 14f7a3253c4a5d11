// The function that Triton calls for each launch of a kernel. It is a plain C function, because a
// call by pybind11 costs more than the launch.

#include <c10/util/irange.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pycfunction_helpers.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "csrc/extras/triton/TritonKernel.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Trace.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using at::openreg::TritonArguments;
using at::openreg::TritonGrid;
using at::openreg::TritonKernel;
using at::openreg::TritonParameter;
using c10::openreg::OpenRegStream;

// What a parameter of the Python function is that the kernel does not have: a constant.
constexpr char kConstant = 'c';

// A kernel, and which arguments of a call are its own.
struct BoundKernel {
  TritonKernel& kernel;
  std::vector<bool> is_constant;
  py::object traced;  // returns the library of the same kernel that tells its accesses, or None
};

// What precedes the arguments of a kernel in a launch, in the order that Triton passes it in.
enum Leading : Py_ssize_t {
  GridX,
  GridY,
  GridZ,
  StreamHandle,
  Function,
  PackedMetadata,
  LaunchMetadata,
  EnterHook,
  ExitHook,
  LeadingCount,
};

// The limits of CUDA.
constexpr int64_t kLargestGrid[] = {std::numeric_limits<int32_t>::max(), 65535, 65535};

void checkPython() {
  if (C10_UNLIKELY(PyErr_Occurred() != nullptr)) {
    throw python_error();
  }
}

int64_t unpackSigned(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (C10_UNLIKELY(value == -1)) {
    checkPython();
  }
  return value;
}

uint64_t unpackUnsigned(PyObject* object) {
  const py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(object));
  checkPython();
  const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
  if (C10_UNLIKELY(value == std::numeric_limits<unsigned long long>::max())) {
    checkPython();
  }
  return value;
}

// The number of a stream in CUDA's libraries: 0 for the default stream, else its handle.
uint64_t handleOf(const OpenRegStream& stream) {
  return stream.id() == 0 ? 0 : reinterpret_cast<uint64_t>(stream.stream());
}

OpenRegStream streamOf(uint64_t handle) {
  const OpenRegStream current = c10::openreg::getCurrentOpenRegStream();
  if (C10_LIKELY(handle == handleOf(current))) {
    return current;
  }
  return handle == 0 ? c10::openreg::getDefaultOpenRegStream()
                     : c10::openreg::getStreamFromExternal(reinterpret_cast<orStream_t>(handle));
}

TritonGrid unpackGrid(PyObject* const* args) {
  TritonGrid grid;
  bool is_empty = false;
  for (const auto i : c10::irange(grid.size())) {
    const int64_t size = unpackSigned(args[i]);
    TORCH_CHECK(size <= kLargestGrid[i] || (i != 0 && !c10::openreg::servesCuda()),
                "Triton Error [CUDA]: invalid argument\nThe grid has ", size,
                " programs in direction ", i, ", and at most ", kLargestGrid[i], " are possible");
    is_empty = is_empty || size <= 0;
    grid[i] = static_cast<uint32_t>(std::max<int64_t>(size, 0));
  }
  return is_empty ? TritonGrid{} : grid;
}

// An object with a method data_ptr(): one of Triton's that reinterprets a tensor, or any other.
void addPointerLike(TritonArguments& arguments, PyObject* object) {
  const auto method =
      py::reinterpret_steal<py::object>(PyObject_CallMethod(object, "data_ptr", nullptr));
  if (!method) {
    PyErr_Clear();
  }
  TORCH_CHECK_TYPE(method, "Pointer argument must be either uint64 or have data_ptr method");
  TORCH_CHECK_TYPE(PyLong_Check(method.ptr()),
                   "data_ptr method of Pointer object must return 64-bit int");
  const uint64_t address = unpackUnsigned(method.ptr());
  const py::object base = py::getattr(object, "base", py::none());
  if (THPVariable_Check(base.ptr())) {
    arguments.addTensorAt(THPVariable_Unpack(base.ptr()), address);
  } else {
    arguments.addAddress(address);
  }
}

void addArgument(TritonArguments& arguments, PyObject* object) {
  switch (arguments.parameter().kind) {
    case TritonParameter::Signed:
      arguments.addInteger(static_cast<uint64_t>(unpackSigned(object)));
      return;
    case TritonParameter::Unsigned:
      arguments.addInteger(unpackUnsigned(object));
      return;
    case TritonParameter::Number: {
      const double number = PyFloat_AsDouble(object);
      checkPython();
      arguments.addNumber(number);
      return;
    }
    case TritonParameter::Read:
    case TritonParameter::Written:
    case TritonParameter::Updated:
    case TritonParameter::Untouched:
      break;
  }
  if (C10_LIKELY(THPVariable_Check(object))) {
    arguments.addTensor(THPVariable_Unpack(object));
  } else if (object == Py_None) {
    arguments.addAddress(0);
  } else if (PyLong_Check(object)) {
    arguments.addAddress(unpackUnsigned(object));
  } else {
    addPointerLike(arguments, object);
  }
}

// Before the first launch that an observer makes a trace for.
void loadTraced(const BoundKernel& bound) {
  const py::object library = bound.traced.is_none() ? py::none() : bound.traced();
  if (!library.is_none()) {
    bound.kernel.loadTraced(py::cast<std::string>(library));
  }
}

void callHook(PyObject* hook, PyObject* metadata) {
  if (hook == Py_None) {
    return;
  }
  const auto result = py::reinterpret_steal<py::object>(PyObject_CallOneArg(hook, metadata));
  checkPython();
}

PyObject* launchTritonKernel(PyObject* self, PyObject* const* args, Py_ssize_t arg_count) {
  HANDLE_TH_ERRORS
  const auto& bound = *static_cast<const BoundKernel*>(PyCapsule_GetPointer(self, nullptr));
  const TritonKernel& kernel = bound.kernel;
  const auto expected = static_cast<Py_ssize_t>(bound.is_constant.size()) + LeadingCount;
  TORCH_CHECK_TYPE(arg_count == expected, kernel.name(), ": expected ", expected - LeadingCount,
                   " arguments, got ", arg_count - LeadingCount);
  if (C10_UNLIKELY(c10::openreg::wantsTraces() && !kernel.hasTraced())) {
    loadTraced(bound);
  }
  const TritonGrid grid = unpackGrid(args);
  const OpenRegStream stream = streamOf(unpackUnsigned(args[StreamHandle]));
  TritonArguments arguments(kernel, stream.device_index());
  for (const auto i : c10::irange(bound.is_constant.size())) {
    if (!bound.is_constant[i]) {
      addArgument(arguments, args[LeadingCount + i]);
    }
  }
  callHook(args[EnterHook], args[LaunchMetadata]);
  kernel.launch(stream, grid, arguments);
  callHook(args[ExitHook], args[LaunchMetadata]);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef kLaunch = {"launch", castPyCFunctionFast(&launchTritonKernel), METH_FASTCALL, nullptr};

py::object bindKernel(const std::string& name, const std::string& library, std::string kinds,
                      const std::vector<std::string>& names,
                      const std::vector<std::pair<std::string, std::string>>& locations,
                      py::object traced) {
  std::vector<bool> is_constant;
  for (const char kind : kinds) {
    is_constant.push_back(kind == kConstant);
  }
  std::erase(kinds, kConstant);
  std::vector<TritonKernel::Location> places;
  for (const auto& [message, place] : locations) {
    places.push_back({message, place});
  }
  TritonKernel& kernel = TritonKernel::load(name, library, kinds, names, std::move(places));
  // Leaked, as is the kernel.
  const py::capsule self(new BoundKernel{kernel, std::move(is_constant), std::move(traced)});
  return py::reinterpret_steal<py::object>(PyCFunction_New(&kLaunch, self.ptr()));
}

PyObject* currentStream(PyObject* /*module*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const auto index = c10::openreg::resolveDeviceIndex(unpackSigned(device));
  return PyLong_FromUnsignedLongLong(handleOf(c10::openreg::getCurrentOpenRegStream(index)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef kCurrentStream = {"current_stream", &currentStream, METH_O, nullptr};

void bindTriton(py::module_& m) {
  m.def("_triton_kernel", &bindKernel, py::arg("name"), py::arg("library"), py::arg("kinds"),
        py::arg("names"), py::arg("locations"), py::arg("traced") = py::none());
  m.def("_triton_current_stream", [] {
    return py::reinterpret_steal<py::object>(PyCFunction_New(&kCurrentStream, nullptr));
  });
}

const Bindings kTritonBindings(&bindTriton);

}  // namespace
}  // namespace torch_openreg
