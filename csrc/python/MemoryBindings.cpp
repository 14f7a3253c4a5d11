#include <ATen/core/CachingHostAllocator.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "csrc/memory/Allocator.h"
#include "csrc/memory/PinnedAllocator.h"
#include "csrc/memory/StorageResize.h"
#include "csrc/python/Bindings.h"
#include "csrc/python/MemoryDescriptions.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/TorchRelease.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace c10::openreg;

at::HostAllocator& hostAllocator() { return *at::getHostAllocator(c10::openreg::kDeviceType); }

void recordHistory(const std::optional<std::string>& enabled,
                   const std::optional<std::string>& context, bool has_native_frames,
                   size_t max_entries, bool clears, const std::vector<std::string>& skipped) {
  startClockOfHistory();
  const py::gil_scoped_release released;
  recordMemoryHistory(
      namedHistorySettings(enabled, context,
                           has_native_frames ? &gatherWholeStack : &gatherPythonStack, max_entries,
                           skipped),
      clears);
}

void recordPinnedHistory(const std::optional<std::string>& enabled,
                         const std::optional<std::string>& context, bool has_native_frames,
                         size_t max_entries, bool clears) {
#if OPENREG_TORCH_HAS_PINNED_HISTORY
  const py::gil_scoped_release released;
  const HistorySettings settings = namedHistorySettings(
      enabled, context, has_native_frames ? &gatherWholeStack : &gatherPythonStack, max_entries,
      {});
  hostAllocator().record_history(settings.is_enabled, settings.gather, settings.max_entries,
                                 settings.when, clears);
#else
  std::ignore = std::tie(enabled, context, has_native_frames, max_entries, clears);
  TORCH_CHECK(false, "_record_memory_history: expected record_pinned_host_memory=False, got True; ",
              "torch ", TORCH_VERSION, " does not record allocations of pinned memory");
#endif
}

// The function is kept until the process ends.
void observeOutOfMemory(const py::object& function) {
  PyObject* kept = function.inc_ref().ptr();
  addOutOfMemoryObserver(
      [kept](c10::DeviceIndex device, size_t requested, size_t allowed, size_t free) {
        const py::gil_scoped_acquire gil;
        py::reinterpret_borrow<py::object>(kept)(device, requested, allowed, free);
      });
}

void bindMemory(py::module_& m) {
  py::class_<MemPool>(m, "_MemPool")
      .def(py::init([](bool use_on_oom, bool no_split) {
             return new MemPool({.serves_others = use_on_oom, .is_split = !no_split});
           }),
           py::arg("use_on_oom") = false, py::arg("no_split") = false)
      .def_property_readonly("id", &MemPool::id)
      .def_property_readonly("device", &MemPool::device)
      .def("use_count", &MemPool::useCount);
  m.def("_create_pool_id", &createPoolId);
  m.def("_begin_allocate_on_thread", &beginAllocateOnThread);
  m.def("_end_allocate_on_thread", &endAllocateOnThread);

  m.def("_raw_allocate", [](size_t size, int64_t id, int64_t index, int64_t type) {
    return reinterpret_cast<size_t>(rawAllocate(size, unpackStream(id, index, type)));
  });
  m.def("_resize_storage",
        [](const at::Storage& storage, size_t size_bytes) { resizeStorage(storage, size_bytes); });
  m.def("_raw_free", [](size_t address) { rawFree(reinterpret_cast<void*>(address)); });
  m.def("_set_memory_fraction", [](double fraction, int64_t device) {
    setMemoryFraction(resolveDeviceIndex(device), fraction);
  });
  m.def("_memory_fraction",
        [](int64_t device) { return memoryFraction(resolveDeviceIndex(device)); });

  m.def("_memory_segments", &describeSegments);
  m.def("_memory_history", &describeHistory);
  m.def("_record_memory_history", &recordHistory);
  m.def("_record_pinned_memory_history", &recordPinnedHistory);
  m.def("_pinned_memory_segments", &describePinnedSegments);
  m.def("_pinned_memory_history", &describePinnedHistory);
  m.def("_set_memory_metadata", &setMemoryMetadata);
  m.def("_memory_metadata", &memoryMetadata);
  m.def("_memory_settings", &describeSettings);
  m.def("_memory_corruptions", &describeCorruptions);
  m.def("_is_memory_poisoned", &isPoisonOn);
  m.def("_is_allocator_valid",
        [](int64_t device) { return isAllocatorValid(resolveDeviceIndex(device)); });

  m.def("_observe_out_of_memory", &observeOutOfMemory);
  m.def("_register_host_memory", &at::openreg::registerHostMemory);
  m.def("_unregister_host_memory", &at::openreg::unregisterHostMemory);

  m.def("_private_pool_stats", &describePrivatePools);
  m.def("_host_memory_stats", &describeHostStats);
  m.def("_reset_accumulated_host_memory_stats", [] { hostAllocator().reset_accumulated_stats(); });
  m.def("_reset_peak_host_memory_stats", [] { hostAllocator().reset_peak_stats(); });
}

const Bindings kMemoryBindings(&bindMemory);

}  // namespace

}  // namespace torch_openreg
