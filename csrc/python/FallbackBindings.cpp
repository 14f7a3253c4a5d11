#include <pybind11/stl.h>

#include "csrc/aten/Fallback.h"
#include "csrc/python/Bindings.h"

namespace torch_openreg {

void bindFallback(pybind11::module& m) {
  using namespace at::openreg;
  // docs: bindings-fallback
  m.def("_fallback_stats", &fallbackStats);
  m.def("_reset_fallback_stats", &resetFallbackStats);
  m.def("_fallback_mode", [] { return fallbackModeName(fallbackMode()); });
  m.def("_set_fallback_mode",
        [](const std::string& mode) { setFallbackMode(parseFallbackMode(mode)); });
  // docs: end
}

}  // namespace torch_openreg
