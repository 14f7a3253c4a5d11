// The functions that Inductor's wrappers call for each allocation and each kernel. They are plain C
// functions, because a call by pybind11 costs more than the launch.

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pycfunction_helpers.h>
#include <torch/csrc/utils/python_numbers.h>

#include <string>

#include "csrc/extras/inductor/InductorKernel.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Functions.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using at::openreg::GeneratedKernel;
using at::openreg::GeneratedParameter;

int64_t unpackInteger(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (C10_UNLIKELY(value == -1 && PyErr_Occurred() != nullptr)) {
    throw python_error();
  }
  return value;
}

const at::Tensor& unpackTensor(const GeneratedKernel& kernel, size_t index, PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), kernel.name(), ": expected a tensor as argument ",
                   index, ", got ", Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object);
}

bool contains(PyObject* positions, size_t index) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); ++i) {
    if (unpackInteger(PyTuple_GET_ITEM(positions, i)) == static_cast<int64_t>(index)) {
      return true;
    }
  }
  return false;
}

// (arguments..., device[, positions of CPU scalars])
PyObject* launchGeneratedKernel(PyObject* self, PyObject* const* args, Py_ssize_t arg_count) {
  HANDLE_TH_ERRORS
  const auto& kernel = *static_cast<const GeneratedKernel*>(PyCapsule_GetPointer(self, nullptr));
  const auto parameters = kernel.parameters();
  const auto count = static_cast<size_t>(arg_count);
  TORCH_CHECK_TYPE(count == parameters.size() + 1 || count == parameters.size() + 2, kernel.name(),
                   ": expected ", parameters.size(), " arguments and a device, got ", count,
                   " arguments");
  PyObject* host_scalars = count == parameters.size() + 2 ? args[count - 1] : nullptr;
  TORCH_CHECK_TYPE(host_scalars == nullptr || PyTuple_Check(host_scalars), kernel.name(),
                   ": expected the positions of CPU scalars as a tuple");
  at::openreg::GeneratedArguments arguments(
      kernel, c10::openreg::resolveDeviceIndex(unpackInteger(args[parameters.size()])));
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i] == GeneratedParameter::Integer) {
      arguments.addInteger(unpackInteger(args[i]));
    } else if (parameters[i] == GeneratedParameter::Number) {
      arguments.addNumber(THPUtils_unpackDouble(args[i]));
    } else if (C10_UNLIKELY(host_scalars != nullptr && contains(host_scalars, i))) {
      arguments.addHostScalar(unpackTensor(kernel, i, args[i]));
    } else {
      arguments.addTensor(unpackTensor(kernel, i, args[i]));
    }
  }
  kernel.launch(arguments);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef kLaunch = {"launch", castPyCFunctionFast(&launchGeneratedKernel), METH_FASTCALL,
                       nullptr};

py::object bindKernel(const std::string& name, const std::string& library,
                      const std::string& parameters) {
  GeneratedKernel& kernel = at::openreg::inductorKernel(name, library, parameters);
  const py::capsule self(&kernel);
  return py::reinterpret_steal<py::object>(PyCFunction_New(&kLaunch, self.ptr()));
}

c10::SmallVector<int64_t, 8> unpackIntegers(PyObject* object) {
  TORCH_CHECK_TYPE(PyTuple_Check(object), "empty_strided_openreg: expected a tuple, got ",
                   Py_TYPE(object)->tp_name);
  c10::SmallVector<int64_t, 8> values;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    values.push_back(unpackInteger(PyTuple_GET_ITEM(object, i)));
  }
  return values;
}

PyObject* emptyStrided(PyObject* /*module*/, PyObject* const* args, Py_ssize_t arg_count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(arg_count == 4, "empty_strided_openreg: expected 4 arguments, got ", arg_count);
  TORCH_CHECK_TYPE(THPDtype_Check(args[2]), "empty_strided_openreg: expected a dtype, got ",
                   Py_TYPE(args[2])->tp_name);
  const auto sizes = unpackIntegers(args[0]);
  const auto strides = unpackIntegers(args[1]);
  const auto dtype = reinterpret_cast<THPDtype*>(args[2])->scalar_type;
  const auto device = c10::openreg::resolveDeviceIndex(unpackInteger(args[3]));
  return THPVariable_Wrap(at::openreg::emptyStridedOn(device, sizes, strides, dtype));
  END_HANDLE_TH_ERRORS
}

PyMethodDef kEmptyStrided = {"empty_strided_openreg", castPyCFunctionFast(&emptyStrided),
                             METH_FASTCALL, nullptr};

py::object bindEmptyStrided() {
  return py::reinterpret_steal<py::object>(PyCFunction_New(&kEmptyStrided, nullptr));
}

void bindInductor(py::module_& m) {
  m.def("_inductor_kernel", &bindKernel, py::arg("name"), py::arg("library"),
        py::arg("parameters"));
  m.def("_inductor_empty_strided", &bindEmptyStrided);
}

const Bindings kInductorBindings(&bindInductor);

}  // namespace

}  // namespace torch_openreg
