// The bindings of the distributed backend for torch.distributed.

#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/extras/distributed/DeviceGloo.h"
#include "csrc/extras/distributed/MessageFormat.h"
#include "csrc/extras/distributed/ProcessGroupOCCL.h"
#include "csrc/extras/distributed/transport/AbsentPeers.h"
#include "csrc/extras/distributed/transport/CollectiveSignature.h"
#include "csrc/extras/distributed/transport/StageGate.h"
#include "csrc/python/Bindings.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;

using at::openreg::AbsentPeers;
using at::openreg::DeviceGloo;
using at::openreg::ProcessGroupOCCL;
using BackendOptions = c10d::Backend::Options;
using Options = ProcessGroupOCCL::Options;
template <typename T>
using Pointer = c10::intrusive_ptr<T>;

// Instances of the Gloo backend are created in Python.
void setGlooFactory(py::function factory) {
  // Leaked, because the last group may be destroyed after the interpreter.
  auto* function = new py::function(std::move(factory));
  ProcessGroupOCCL::setGlooFactory([function](const Pointer<c10d::Store>& store, int rank, int size,
                                              std::chrono::milliseconds timeout) {
    const py::gil_scoped_acquire gil;
    return (*function)(store, rank, size, timeout).cast<Pointer<c10d::Backend>>();
  });
}

Pointer<Options> makeOptions(bool is_high_priority_stream) {
  auto options = c10::make_intrusive<Options>();
  options->is_high_priority_stream = is_high_priority_stream;
  return options;
}

Pointer<Options> copyOptions(const Options& options, const py::dict& /*memo*/) {
  return c10::make_intrusive<Options>(options);
}

// c10d calls it on ranks outside a new group, where NCCL requires it.
void performNoColorSplit(ProcessGroupOCCL& /*group*/, py::handle /*device*/) {}

std::vector<std::tuple<int64_t, int64_t, int64_t>> packedStreams(ProcessGroupOCCL& group) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> packed;
  for (const auto& stream : group.streams()) {
    const auto parts = stream.unwrap().pack3();
    packed.emplace_back(parts.stream_id, parts.device_index,
                        static_cast<int64_t>(parts.device_type));
  }
  return packed;
}

// For tests; see StageGate.h.
void holdOperations(const std::string& stage) { at::openreg::StageGate::instance().close(stage); }

void releaseOperations() { at::openreg::StageGate::instance().open(); }

bool waitUntilHeld(std::chrono::milliseconds timeout) {
  return at::openreg::StageGate::instance().waitUntilReached(timeout);
}

// For tests of messages from other programs.
std::string findHeaderFault(const std::string& own, const std::string& other, int peer) {
  using at::openreg::Header;
  return at::openreg::findFault(Header::read(own.data(), own.size()),
                                Header::read(other.data(), other.size()), peer);
}

std::string textOfHeader(const std::string& text) {
  at::openreg::Header header;
  header.setText(text);
  return header.readText();
}

void monitoredBarrier(ProcessGroupOCCL& group, std::chrono::milliseconds timeout) {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  group.monitoredBarrier(options, /*wait_all_ranks=*/true);
}

void bindDistributed(py::module_& m) {
  // The base classes are defined there.
  py::module_::import("torch._C._distributed_c10d");
  py::class_<ProcessGroupOCCL, Pointer<ProcessGroupOCCL>, c10d::Backend> group(m,
                                                                               "ProcessGroupOCCL");
  py::class_<Options, Pointer<Options>, BackendOptions>(group, "Options")
      .def(py::init(&makeOptions), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream)
      .def("__deepcopy__", &copyOptions, py::arg("memo"));
  group
      .def(py::init<Pointer<c10d::Store>, int, int, Pointer<Options>>(), py::arg("store"),
           py::arg("rank"), py::arg("size"), py::arg("options"), ReleaseGil())
      .def_property_readonly("options", &ProcessGroupOCCL::getBackendOptions)
      .def("comm_split_count", &ProcessGroupOCCL::splitCount)
      .def("perform_nocolor_split", &performNoColorSplit, py::arg("device"))
      .def("_add_ephemeral_timeout", &ProcessGroupOCCL::addEphemeralTimeout, py::arg("timeout"),
           ReleaseGil())
      .def("_streams", &packedStreams)
      .def("_get_sequence_number_for_group", &ProcessGroupOCCL::getSequenceNumberForGroup)
      .def("monitored_barrier", &monitoredBarrier, py::arg("timeout"), ReleaseGil());
  py::class_<DeviceGloo, Pointer<DeviceGloo>, c10d::Backend>(m, "_DeviceGloo")
      .def(py::init<Pointer<c10d::Backend>>(), py::arg("gloo"));
  py::class_<AbsentPeers, Pointer<AbsentPeers>, c10d::Backend>(m, "_AbsentPeers")
      .def(py::init<Pointer<c10d::Store>, int, int>(), py::arg("store"), py::arg("rank"),
           py::arg("size"))
      .def_property_readonly("options", &AbsentPeers::getBackendOptions);
  m.def("_set_running_ranks", &at::openreg::setRunningRanks, py::arg("ranks"));
  m.def("_set_gloo_factory", &setGlooFactory, py::arg("factory"));
  m.def("_hold_operations", &holdOperations, py::arg("stage"));
  m.def("_release_operations", &releaseOperations);
  m.def("_message_format", &at::openreg::messageFormat);
  m.def("_find_header_fault", &findHeaderFault, py::arg("own"), py::arg("other"), py::arg("peer"));
  m.def("_text_of_header", &textOfHeader, py::arg("text"));
  m.def("_wait_until_held", &waitUntilHeld, py::arg("timeout"), ReleaseGil());
}

const Bindings kDistributedBindings(&bindDistributed);

}  // namespace

}  // namespace torch_openreg
