// Functions that wait release the GIL.

#include <ATen/core/CachingHostAllocator.h>

#include "csrc/extras/poison/Poison.h"
#include "csrc/python/Bindings.h"
#include "csrc/python/MemoryFrames.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace c10::openreg;

// Waits for all devices.
py::list describeCorruptions() {
  const auto corruptions = withoutGil(findCorruptions);
  return describeAll(corruptions,
                     [](const Corruption& corruption, py::dict& item, MemoryFrames& frames) {
                       item["device"] = corruption.device;
                       item["address"] = reinterpret_cast<size_t>(corruption.address);
                       item["requested_size"] = corruption.requested_size;
                       item["offset"] = corruption.offset;
                       item["length"] = corruption.length;
                       item["value"] = corruption.value;
                       item["is_free"] = corruption.is_free;
                       frames.put(item, corruption.context);
                     });
}

void bindPoison(py::module_& m) {
  m.def("_memory_corruptions", &describeCorruptions);
  m.def("_is_memory_poisoned", &isPoisonOn);
  m.def(
      "_fill_free_memory",
      [] {
        fillFreeMemory();
        at::getHostAllocator(kDeviceType)->empty_cache();
      },
      ReleaseGil());
}

const Bindings kPoisonBindings(&bindPoison);

}  // namespace
}  // namespace torch_openreg
