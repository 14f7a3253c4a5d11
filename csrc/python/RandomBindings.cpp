#include <ATen/Context.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/random/Generator.h"

namespace torch_openreg {

namespace {

void bindRandom(pybind11::module_& m) {
  // docs: bindings-random
  m.def("_get_default_generator", [](int64_t device) {
    const c10::DeviceIndex index = c10::openreg::resolveDeviceIndex(device);
    return at::globalContext().defaultGenerator(c10::Device(c10::openreg::kDeviceType, index));
  });
  // docs: end
  m.def(
      "_wait_for_generator",
      [](const at::Generator& generator) {
        at::openreg::engineForHost(generator, generator.device().index());
      },
      ReleaseGil());
}

const Bindings kRandomBindings(&bindRandom);

}  // namespace

}  // namespace torch_openreg
