// torch_openreg._C: registers the bindings of each subject, and the hooks that the backend needs
// from Python. The types are in torch_openreg/_C.pyi.

#include <pybind11/pybind11.h>

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

}  // namespace

PYBIND11_MODULE(_C, m) {
  c10::openreg::setBlockingHooks({&releaseGil, &restoreGil});
  c10::openreg::setInterruptCheck(&takeInterrupt);
  torch_openreg::bindDevice(m);
  torch_openreg::bindStream(m);
  torch_openreg::bindEvent(m);
  torch_openreg::bindMemory(m);
  torch_openreg::bindRandom(m);
  torch_openreg::bindIpc(m);
  torch_openreg::bindFallback(m);
  torch_openreg::bindGate(m);
  torch_openreg::bindSchedule(m);
  torch_openreg::bindInductor(m);
  torch_openreg::bindAutograd(m);
  torch_openreg::bindProfiler(m);
  torch_openreg::bindSanitizer(m);
  torch_openreg::bindDistributed(m);
}
