#include <torch/csrc/utils/pybind.h>

#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/random/Generator.h"

namespace torch_openreg {

void bindRandom(pybind11::module_& m) {
  // docs: bindings-random
  m.def("_default_generator", [](int64_t device) {
    return at::openreg::defaultGenerator(c10::openreg::resolveDeviceIndex(device));
  });
  // docs: end
  m.def(
      "_wait_for_generator",
      [](const at::Generator& generator) {
        at::openreg::engineForHost(generator, generator.device().index());
      },
      ReleaseGil());
}

}  // namespace torch_openreg
