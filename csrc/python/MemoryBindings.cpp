#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/ApproximateClock.h>
#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <map>
#include <memory>
#include <thread>

#include "csrc/memory/Allocator.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Stream.h"

// torch exports these two, but the header that declares them needs a JSON library that torch does
// not install.
namespace torch {
std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
void freeDeadCapturedTracebackFrames();
}  // namespace torch

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace c10::openreg;
using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using TraceEntry = MemoryHistory::TraceEntry;

// --- Stacks

std::shared_ptr<c10::GatheredContext> gatherPythonStack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false);
}

std::shared_ptr<c10::GatheredContext> gatherWholeStack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/true);
}

// Puts lists of frames into dictionaries, all at once, as looking frames up one by one is slow.
class Frames {
 public:
  void put(py::dict where, const std::shared_ptr<c10::GatheredContext>& context) {
    if (auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get())) {
      tracebacks_.push_back(traceback);
      places_.push_back(std::move(where));
    } else {
      where["frames"] = py::list();
    }
  }

  void symbolize() {
    const std::vector<py::object> lists = torch::py_symbolize(tracebacks_);
    for (size_t i = 0; i < lists.size(); ++i) {
      places_[i]["frames"] = lists[i];
    }
    torch::freeDeadCapturedTracebackFrames();
  }

 private:
  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::vector<py::dict> places_;
};

// --- Snapshots, in the format of torch's memory viewer

const char* stateOf(const BlockInfo& block) {
  if (block.allocated) {
    return "active_allocated";
  }
  return block.active ? "active_awaiting_free" : "inactive";
}

py::list describeSegments(c10::MempoolId_t pool) {
  std::vector<SegmentInfo> segments;
  {
    const py::gil_scoped_release released;
    segments = memorySnapshot(pool);
  }
  py::list result;
  Frames frames;
  for (const SegmentInfo& segment : segments) {
    py::list blocks;
    size_t address = segment.address;
    for (const BlockInfo& block : segment.blocks) {
      py::dict entry;
      entry["address"] = address;
      entry["size"] = block.size;
      entry["requested_size"] = block.requested_size;
      entry["state"] = stateOf(block);
      frames.put(entry, block.context_when_allocated);
      blocks.append(entry);
      address += block.size;
    }
    py::dict entry;
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
    result.append(entry);
  }
  frames.symbolize();
  return result;
}

constexpr std::array<const char*, TraceEntry::OOM + 1> kActions = {
    "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap",  "snapshot",       "oom",
};

// Converts the times of entries. It must exist before the first of them is made.
c10::ApproximateClockToUnixTimeConverter& clockOfHistory() {
  static c10::ApproximateClockToUnixTimeConverter clock;
  return clock;
}

py::list describeHistory(int64_t device) {
  const std::vector<TraceEntry> entries = memoryHistory(resolveDeviceIndex(device));
  const auto to_unix_ns = clockOfHistory().makeConverter();
  py::list result;
  Frames frames;
  for (const TraceEntry& entry : entries) {
    py::dict item;
    item["action"] = kActions.at(entry.action_);
    item[entry.action_ == TraceEntry::OOM ? "device_free" : "addr"] = entry.addr_;
    item["size"] = entry.size_;
    item["stream"] = reinterpret_cast<int64_t>(entry.stream_);
    item["device"] = entry.device_;
    item["pool_id"] = entry.mempool_;
    item["time_us"] = to_unix_ns(entry.time_.approx_t_) / 1000;
    frames.put(item, entry.context_);
    result.append(item);
  }
  frames.symbolize();
  return result;
}

void recordHistory(const std::optional<std::string>& enabled,
                   const std::optional<std::string>& context, bool has_native_frames,
                   size_t max_entries, bool clears, const std::vector<std::string>& skipped) {
  static const std::map<std::string, RecordContext> levels = {{"state", RecordContext::STATE},
                                                              {"alloc", RecordContext::ALLOC},
                                                              {"all", RecordContext::ALL}};
  HistorySettings settings;
  settings.is_enabled = enabled.has_value();
  settings.keeps_entries = enabled == "all";
  settings.when = context ? levels.at(*context) : RecordContext::NEVER;
  settings.gather = has_native_frames ? &gatherWholeStack : &gatherPythonStack;
  settings.max_entries = max_entries;
  for (const std::string& action : skipped) {
    settings.is_skipped.at(c10::CachingDeviceAllocator::parseTraceEntryAction(action)) = true;
  }
  clockOfHistory();
  const py::gil_scoped_release released;
  recordMemoryHistory(settings, clears);
}

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
  result["expandable_segments"] = false;
  return result;
}

py::list describeCorruptions() {
  std::vector<Corruption> corruptions;
  {
    const py::gil_scoped_release released;
    corruptions = findCorruptions();
  }
  py::list result;
  Frames frames;
  for (const Corruption& corruption : corruptions) {
    py::dict item;
    item["device"] = corruption.device;
    item["address"] = reinterpret_cast<size_t>(corruption.address);
    item["requested_size"] = corruption.requested_size;
    item["offset"] = corruption.offset;
    item["length"] = corruption.length;
    item["value"] = corruption.value;
    item["is_free"] = corruption.is_free;
    frames.put(item, corruption.context);
    result.append(item);
  }
  frames.symbolize();
  return result;
}

// --- Private pools

// A pool of a program's own. Its last user gives the memory back.
class MemPool {
 public:
  MemPool() : device_(currentDevice()), id_(createPoolId(/*by_user=*/true)) {
    retainPool(device_, id_);
  }
  MemPool(const MemPool&) = delete;
  MemPool& operator=(const MemPool&) = delete;
  ~MemPool() {
    if (isInBadFork()) {
      return;
    }
    try {
      releasePool(device_, id_);
      if (poolUseCount(device_, id_) == 0) {
        emptyPool(device_, id_);  // nobody needs its addresses, as a graph would
      }
    } catch (const c10::Error& error) {
      std::fprintf(stderr, "openreg: a memory pool's memory stays reserved: %s\n",
                   error.what_without_backtrace());
    }
  }

  c10::DeviceIndex device() const { return device_; }
  c10::MempoolId_t id() const { return id_; }
  int useCount() const { return poolUseCount(device_, id_); }

 private:
  const c10::DeviceIndex device_;
  const c10::MempoolId_t id_;
};

void beginAllocateOnThread(int64_t device, c10::MempoolId_t pool) {
  const std::thread::id thread = std::this_thread::get_id();
  beginAllocateToPool(resolveDeviceIndex(device), pool, [thread](const OpenRegStream&) {
    return std::this_thread::get_id() == thread;
  });
}

// Undoes that, its use of the pool included.
void endAllocateOnThread(int64_t device, c10::MempoolId_t pool) {
  endAllocateToPool(resolveDeviceIndex(device), pool);
  releasePool(resolveDeviceIndex(device), pool);
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

// What core's own binding of the statistics leaves out.
py::dict describePrivatePools(int64_t device) {
  const auto stats =
      c10::getDeviceAllocator(at::kPrivateUse1)->getDeviceStats(resolveDeviceIndex(device));
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

// --- Pinned memory

at::HostAllocator& hostAllocator() { return *at::getHostAllocator(at::kPrivateUse1); }

py::dict describe(const c10::CachingAllocator::DurationStat& stat) {
  py::dict result;
  result["total"] = stat.total;
  result["max"] = stat.max;
  result["min"] = stat.min;
  result["count"] = stat.count;
  result["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
  return result;
}

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

void resetAccumulatedHostStats() { hostAllocator().reset_accumulated_stats(); }

void resetPeakHostStats() { hostAllocator().reset_peak_stats(); }

}  // namespace

void bindMemory(py::module_& m) {
  py::class_<MemPool>(m, "_MemPool")
      .def(py::init<>())
      .def_property_readonly("id", &MemPool::id)
      .def_property_readonly("device", &MemPool::device)
      .def("use_count", &MemPool::useCount);
  m.def("_create_pool_id", &createPoolId);
  m.def("_begin_allocate_on_thread", &beginAllocateOnThread);
  m.def("_end_allocate_on_thread", &endAllocateOnThread);

  m.def("_raw_allocate", [](size_t size, int64_t id, int64_t index, int64_t type) {
    return reinterpret_cast<size_t>(rawAllocate(size, unpackStream(id, index, type)));
  });
  m.def("_raw_free", [](size_t address) { rawFree(reinterpret_cast<void*>(address)); });
  m.def("_set_memory_fraction", [](double fraction, int64_t device) {
    setMemoryFraction(resolveDeviceIndex(device), fraction);
  });
  m.def("_memory_fraction",
        [](int64_t device) { return memoryFraction(resolveDeviceIndex(device)); });

  m.def("_memory_segments", &describeSegments);
  m.def("_memory_history", &describeHistory);
  m.def("_record_memory_history", &recordHistory);
  m.def("_memory_settings", &describeSettings);
  m.def("_memory_corruptions", &describeCorruptions);
  m.def("_is_memory_poisoned", &isPoisonOn);
  m.def("_is_allocator_valid",
        [](int64_t device) { return isAllocatorValid(resolveDeviceIndex(device)); });

  m.def("_private_pool_stats", &describePrivatePools);
  m.def("_host_memory_stats", &describeHostStats);
  m.def("_reset_accumulated_host_memory_stats", &resetAccumulatedHostStats);
  m.def("_reset_peak_host_memory_stats", &resetPeakHostStats);
}

}  // namespace torch_openreg
