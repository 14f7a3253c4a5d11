// torch_openreg._C: one line per function, no logic. The types are in torch_openreg/_C.pyi.

#include <pybind11/pybind11.h>

#include "csrc/python/Bindings.h"

PYBIND11_MODULE(_C, m) {
  torch_openreg::bindDevice(m);
  torch_openreg::bindStream(m);
  torch_openreg::bindEvent(m);
  torch_openreg::bindRandom(m);
  torch_openreg::bindFallback(m);
  torch_openreg::bindGate(m);
}
