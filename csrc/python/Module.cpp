// torch_openreg._C: adds the bindings of each subject, and sets the hooks that the backend needs
// from Python. The types are in torch_openreg/_C.pyi.

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "csrc/core/BlockingRegion.h"
#include "csrc/core/Interrupt.h"
#include "csrc/python/Bindings.h"

namespace {

void* releaseGil() {
  return Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
}

void restoreGil(void* state) {
  if (state != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state));
  }
}

// Runs the handlers of pending signals, and returns the exception that one of them raised.
std::exception_ptr takeInterrupt() {
  if (Py_IsInitialized() == 0) {
    return nullptr;
  }
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) {
    return nullptr;
  }
  return std::make_exception_ptr(pybind11::error_already_set());
}

// Not a variable of namespace scope, which could be initialized after its first use.
std::vector<torch_openreg::Bindings::Bind>& allBindings() {
  static auto* bindings = new std::vector<torch_openreg::Bindings::Bind>;
  return *bindings;
}

// Their names, as setup.py has written them.
std::string missingExtras() { return OPENREG_MISSING_EXTRAS; }

// Called for a name that the module does not have: that of an extra that was left out, perhaps.
pybind11::object explainMissing(const std::string& name) {
  std::string text = "module 'torch_openreg._C' has no attribute '" + name + "'";
  if (!missingExtras().empty()) {
    text += "; torch_openreg was built without its extras " OPENREG_MISSING_EXTRAS
            ": install it again with OPENREG_EXTRAS=all";
  }
  throw pybind11::attribute_error(text);
}

}  // namespace

torch_openreg::Bindings::Bindings(Bind bind) { allBindings().push_back(bind); }

void torch_openreg::Bindings::addAll(pybind11::module_& m) {
  for (const Bind bind : allBindings()) {
    bind(m);
  }
}

PYBIND11_MODULE(_C, m) {
  c10::openreg::setBlockingHooks({&releaseGil, &restoreGil});
  c10::openreg::setInterruptCheck(&takeInterrupt);
  m.def("_missing_extras", &missingExtras);
  m.attr("__getattr__") = pybind11::cpp_function(&explainMissing);
  torch_openreg::Bindings::addAll(m);
}
