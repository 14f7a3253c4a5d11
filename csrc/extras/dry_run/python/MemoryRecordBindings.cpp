#include <pybind11/stl.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "csrc/extras/dry_run/MemoryRecord.h"
#include "csrc/extras/dry_run/Workspaces.h"
#include "csrc/python/Bindings.h"
#include "csrc/python/SharedStacks.h"
#include "torch_openreg/core/Functions.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace c10::openreg;

constexpr const char* nameOf(Phase phase) {
  switch (phase) {
    case Phase::Forward:
      return "forward";
    case Phase::Backward:
      return "backward";
    case Phase::Optimizer:
      return "optimizer";
  }
  return "";
}

constexpr const char* nameOf(BlockUse use) {
  switch (use) {
    case BlockUse::Unknown:
      return "";
    case BlockUse::Parameter:
      return "parameter";
    case BlockUse::Gradient:
      return "gradient";
    case BlockUse::OptimizerState:
      return "optimizer state";
    case BlockUse::Workspace:
      return "workspace";
  }
  return "";
}

// Stacks as lists of frames, each once.
class StackList {
 public:
  size_t numberOf(const Stack& stack) {
    const auto [place, is_new] = numbers_.try_emplace(stack.here.get(), frames_.size());
    if (is_new) {
      frames_.append(describeFrames(stack));
    }
    return place->second;
  }

  py::list frames() const { return frames_; }

 private:
  std::unordered_map<const void*, size_t> numbers_;
  py::list frames_;
};

py::dict describe(const BlockRecord& block, StackList& stacks) {
  py::dict result;
  result["requested"] = block.requested;
  result["size"] = block.size;
  result["allocated_at"] = block.allocated_at;
  result["freed_at"] = block.freed_at;
  result["use"] = nameOf(block.use);
  result["phase"] = nameOf(block.phase);
  result["records_gradients"] = block.records_gradients;
  result["outlived_forward"] = block.outlived_forward;
  result["stack"] = stacks.numberOf(block.stack);
  return result;
}

py::dict describe(const MemoryMoment& moment) {
  py::dict result;
  result["allocated"] = moment.allocated;
  result["used"] = moment.used;
  result["time"] = moment.time;
  result["step"] = moment.step;
  result["phase"] = nameOf(moment.phase);
  result["stack"] = describeFrames(moment.stack);
  return result;
}

py::object describe(const std::optional<FailedAllocation>& failure) {
  if (!failure.has_value()) {
    return py::none();
  }
  py::dict result = describe(failure->moment);
  result["device"] = failure->device;
  result["requested"] = failure->requested;
  return result;
}

py::tuple describeBlocks(const std::vector<BlockRecord>& blocks) {
  StackList stacks;
  py::list described;
  for (const BlockRecord& block : blocks) {
    described.append(describe(block, stacks));
  }
  return py::make_tuple(described, stacks.frames());
}

// The peak of a device, with its blocks, whose "stack" is an index in "stacks".
py::dict peakOf(int64_t device) {
  const c10::DeviceIndex index = resolveDeviceIndex(device);
  const MemoryPeak peak = withoutGil([&] { return memoryPeak(index); });
  py::dict result = describe(static_cast<const MemoryMoment&>(peak));
  const py::tuple blocks = describeBlocks(peak.blocks);
  result["is_before_backward"] = peak.is_before_backward;
  result["most_used"] = peak.most_used;
  result["blocks"] = blocks[0];
  result["stacks"] = blocks[1];
  return result;
}

py::tuple spansOf(int64_t device) {
  const c10::DeviceIndex index = resolveDeviceIndex(device);
  return describeBlocks(withoutGil([&] { return memorySpans(index); }));
}

void noteUse(const std::vector<uintptr_t>& addresses, const std::string& use) {
  for (const BlockUse one : {BlockUse::Parameter, BlockUse::Gradient, BlockUse::OptimizerState}) {
    if (use == nameOf(one)) {
      noteBlockUse(addresses, one);
      return;
    }
  }
  throw py::value_error(
      "_memory_record_note: expected parameter, gradient or optimizer state, got " + use);
}

void bindMemoryRecord(py::module_& m) {
  m.def("_memory_record_start", &startMemoryRecord);
  m.def("_memory_record_set_context", &setContextSize, ReleaseGil());
  m.def("_memory_record_kernels", &launchedKernels);
  m.def("_memory_record_start_workspaces", &startWorkspaces);
  m.def("_memory_record_clear_workspaces", &clearWorkspaces, ReleaseGil());
  m.def("_memory_record_note", &noteUse);
  m.def("_memory_record_begin_backward", &noteBackwardBegin, ReleaseGil());
  m.def("_memory_record_step", &noteOptimizerStep, ReleaseGil());
  m.def("_memory_record_devices", &recordedDevices, ReleaseGil());
  m.def("_memory_record_peak", &peakOf);
  m.def("_memory_record_spans", &spansOf);
  m.def("_memory_record_watch", &setWatchedLimit, ReleaseGil());
  m.def("_memory_record_failure", [] { return describe(firstFailure()); });
  m.def("_memory_record_passing", [] { return describe(firstPassing()); });
}

const Bindings kMemoryRecordBindings(&bindMemoryRecord);

}  // namespace

}  // namespace torch_openreg
