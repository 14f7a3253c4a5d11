// The state of memory as Python dictionaries, in the formats of torch.cuda, and its settings.
//
// Functions that wait release the GIL.

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/ApproximateClock.h>
#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "csrc/memory/Allocator.h"
#include "csrc/memory/PinnedAllocator.h"
#include "csrc/memory/StorageResize.h"
#include "csrc/python/Bindings.h"
#include "csrc/python/MemoryFrames.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/TorchRelease.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace c10::openreg;
using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;
using TraceEntry = MemoryHistory::TraceEntry;

at::HostAllocator& hostAllocator() { return *at::getHostAllocator(kDeviceType); }

// --- Stacks

// The calling thread's stack: Python and TorchScript frames, and C++ frames.
std::shared_ptr<c10::GatheredContext> gatherPythonStack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false);
}

std::shared_ptr<c10::GatheredContext> gatherWholeStack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/true);
}

const char* stateOf(const BlockInfo& block) {
  if (block.allocated) {
    return "active_allocated";
  }
  return block.active ? "active_awaiting_free" : "inactive";
}

// --- Snapshots, in the format of torch's memory viewer

// The segments and their blocks; those of one private pool unless the id is (0, 0).
py::list describeSegments(c10::MempoolId_t pool) {
  const auto segments = withoutGil([&] { return memorySnapshot(pool); });
  return describeAll(segments,
                     [](const SegmentInfo& segment, py::dict& entry, MemoryFrames& frames) {
                       py::list blocks;
                       size_t address = segment.address;
                       for (const BlockInfo& block : segment.blocks) {
                         py::dict item;
                         item["address"] = address;
                         item["size"] = block.size;
                         item["requested_size"] = block.requested_size;
                         item["state"] = stateOf(block);
                         frames.put(item, block.context_when_allocated);
                         blocks.append(item);
                         address += block.size;
                       }
                       entry["device"] = segment.device;
                       entry["address"] = segment.address;
                       entry["total_size"] = segment.total_size;
                       entry["allocated_size"] = segment.allocated_size;
                       entry["active_size"] = segment.active_size;
                       entry["requested_size"] = segment.requested_size;
                       entry["stream"] = reinterpret_cast<int64_t>(segment.stream);
                       entry["segment_type"] = segment.is_large ? "large" : "small";
                       entry["segment_pool_id"] = segment.owner_private_pool_id;
                       entry["is_expandable"] = segment.is_expandable;
                       entry["blocks"] = blocks;
                       frames.put(entry, segment.context_when_allocated);
                     });
}

constexpr std::array<const char*, TraceEntry::OOM + 1> kActions = {
    "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap",  "snapshot",       "oom",
};

// Converts the times of entries. It must be created before the first entry.
c10::ApproximateClockToUnixTimeConverter& clockOfHistory() {
  static c10::ApproximateClockToUnixTimeConverter clock;
  return clock;
}

template <typename TimeUs>
py::list describeEntries(const std::vector<TraceEntry>& entries, const TimeUs& time_us) {
  return describeAll(entries, [&](const TraceEntry& entry, py::dict& item, MemoryFrames& frames) {
    item["action"] = kActions.at(entry.action_);
    item[entry.action_ == TraceEntry::OOM ? "device_free" : "addr"] = entry.addr_;
    item["size"] = entry.size_;
    item["stream"] = reinterpret_cast<int64_t>(entry.stream_);
    item["device"] = entry.device_;
    item["pool_id"] = entry.mempool_;
    item["time_us"] = time_us(entry);
    item["user_metadata"] = entry.user_metadata_;
    frames.put(item, entry.context_);
  });
}

// A device's history.
py::list describeHistory(int64_t device) {
  const auto to_unix_ns = clockOfHistory().makeConverter();
  return describeEntries(memoryHistory(resolveDeviceIndex(device)), [&](const TraceEntry& entry) {
    return to_unix_ns(entry.time_.approx_t_) / 1000;
  });
}

// The blocks and the history of pinned memory; empty with a torch that does not record it.
#if OPENREG_TORCH_HAS_PINNED_HISTORY
py::list describePinnedSegments() {
  const auto segments = withoutGil([] { return hostAllocator().get_segments(); });
  return describeAll(segments, [](const auto& segment, py::dict& entry, MemoryFrames& frames) {
    entry["address"] = segment.address;
    entry["size"] = segment.size;
    entry["allocated"] = segment.allocated;
    entry["active"] = segment.active;
    entry["segment_pool_id"] = segment.owner_private_pool_id;
    frames.put(entry, segment.context_when_allocated);
  });
}

py::list describePinnedHistory() {
  const auto entries = withoutGil([] { return hostAllocator().get_traces(); });
  // Its times are already in microseconds.
  return describeEntries(entries, [](const TraceEntry& entry) { return entry.time_.t_; });
}
#else
py::list describePinnedSegments() { return py::list(); }
py::list describePinnedHistory() { return py::list(); }
#endif

// The settings of the device allocator.
py::dict describeSettings() {
  const size_t max_split_size = AcceleratorAllocatorConfig::max_split_size();
  py::dict result;
  result["PYTORCH_ALLOC_CONF"] = AcceleratorAllocatorConfig::last_allocator_settings();
  result["max_split_size"] = max_split_size == std::numeric_limits<size_t>::max()
                                 ? int64_t{-1}
                                 : static_cast<int64_t>(max_split_size);
  result["garbage_collection_threshold"] =
      AcceleratorAllocatorConfig::garbage_collection_threshold();
  result["large_segment_size"] = AcceleratorAllocatorConfig::large_segment_size();
  result["expandable_segments"] = AcceleratorAllocatorConfig::use_expandable_segments();
  return result;
}

// --- Statistics

py::dict describe(const c10::CachingAllocator::Stat& stat) {
  py::dict result;
  result["current"] = stat.current;
  result["peak"] = stat.peak;
  result["allocated"] = stat.allocated;
  result["freed"] = stat.freed;
  return result;
}

py::dict describe(const c10::CachingAllocator::DurationStat& stat) {
  py::dict result;
  result["total"] = stat.total;
  result["max"] = stat.max;
  result["min"] = stat.min;
  result["count"] = stat.count;
  result["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
  return result;
}

// The statistics that torch's own binding omits.
py::dict describePrivatePools(int64_t device) {
  const auto stats =
      c10::getDeviceAllocator(kDeviceType)->getDeviceStats(resolveDeviceIndex(device));
  py::dict result;
  for (const auto& [id, stat] : stats.reserved_bytes_by_private_pools) {
    py::dict pool;
    for (const auto& [name, type] :
         {std::pair("all", StatType::AGGREGATE), std::pair("small_pool", StatType::SMALL_POOL),
          std::pair("large_pool", StatType::LARGE_POOL)}) {
      pool[name] = describe(stat.at(static_cast<size_t>(type)));
    }
    result[py::cast(id)] = pool;
  }
  return result;
}

// The statistics of the cache of pinned memory.
py::dict describeHostStats() {
  const at::HostStats stats = hostAllocator().get_stats();
  py::dict result;
  result["allocations"] = describe(stats.allocations);
  result["allocated_bytes"] = describe(stats.allocated_bytes);
  result["active_requests"] = describe(stats.active_requests);
  result["active_bytes"] = describe(stats.active_bytes);
  result["host_alloc_time"] = describe(stats.host_alloc_time);
  result["host_free_time"] = describe(stats.host_free_time);
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  return result;
}

// --- Settings

void recordHistory(const std::optional<std::string>& enabled,
                   const std::optional<std::string>& context, bool has_native_frames,
                   size_t max_entries, bool clears, const std::vector<std::string>& skipped) {
  clockOfHistory();
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

// Calls functions of the program, which are kept until the process ends.
class ExhaustionObserver final : public Observer {
 public:
  // With the GIL held, as the call.
  void add(const py::object& function) { functions_.push_back(function.inc_ref().ptr()); }

  void memoryExhaustion(c10::DeviceIndex device, size_t requested, size_t allowed,
                        size_t free) override {
    const py::gil_scoped_acquire gil;
    for (size_t i = 0; i < functions_.size(); ++i) {  // a function may add another one
      py::reinterpret_borrow<py::object>(functions_[i])(device, requested, allowed, free);
    }
  }

 private:
  std::vector<PyObject*> functions_;
};

void observeOutOfMemory(const py::object& function) {
  static ExhaustionObserver* const observer = [] {
    auto* added = new ExhaustionObserver;
    addObserver(*added, ObservedEvents::Shortages);
    return added;
  }();
  observer->add(function);
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
