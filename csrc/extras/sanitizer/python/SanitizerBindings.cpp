#include <ATen/core/CachingHostAllocator.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include <array>
#include <memory>
#include <vector>

#include "csrc/core/Stack.h"
#include "csrc/extras/sanitizer/Sanitizer.h"
#include "csrc/extras/sanitizer/WrittenOperands.h"
#include "csrc/extras/sanitizer/host/HostWatch.h"
#include "csrc/python/Bindings.h"
#include "csrc/python/SharedStacks.h"
#include "torch_openreg/core/Functions.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using namespace c10::openreg;

// The function of torch_openreg.openreg.sanitizer that receives findings. Leaked: findings may be
// reported while the interpreter ends.
py::object& handler() {
  static auto* instance = new py::object;
  return *instance;
}

py::tuple describe(const c10::Stream& stream) {
  return py::make_tuple(stream.device_index(), stream.id());
}

py::dict describe(const AccessReport& report) {
  const Access& access = report.access;
  py::dict result;
  result["kernel"] = report.kernel;
  result["argument"] = access.argument;
  result["operand"] = access.operand;
  result["is_write"] = access.is_write;
  result["is_allocation"] = access.is_allocation;
  result["is_host"] = report.is_host;
  result["thread"] = report.thread;
  result["stream"] = describe(report.stream);
  result["offset"] = static_cast<int64_t>(access.runs.begin() - report.base);
  result["nbytes"] = access.runs.byteCount();
  result["dtype"] = access.dtype == c10::ScalarType::Undefined ? "" : c10::toString(access.dtype);
  result["sizes"] = access.sizes == nullptr ? std::vector<int64_t>() : *access.sizes;
  result["stack"] = describeFrames(report.stack);
  result["captured"] = describeFrames(report.captured);
  result["program"] = py::none();
  result["place"] = "";
  result["is_atomic"] = false;
  if (const ProgramPlace* const place = access.program()) {
    const auto& program = place->program;
    result["program"] = py::make_tuple(program[0], program[1], program[2]);
    result["place"] = place->place;
    result["is_atomic"] = place->is_atomic;
  }
  return result;
}

py::dict describe(const AllocationReport& allocation) {
  py::dict result;
  result["size"] = allocation.size;
  result["stream"] = allocation.stream ? describe(*allocation.stream) : py::object(py::none());
  result["is_host_memory"] = allocation.is_host_memory;
  result["allocated"] = describeFrames(allocation.allocated);
  result["freed"] =
      allocation.freed ? py::object(describeFrames(*allocation.freed)) : py::object(py::none());
  return result;
}

py::object describe(const std::optional<WaitReport>& wait) {
  if (!wait.has_value()) {
    return py::none();
  }
  py::dict result;
  result["stack"] = describeFrames(wait->stack);
  result["is_of_host"] = wait->is_of_host;
  result["is_after_the_other"] = wait->is_after_the_other;
  return result;
}

constexpr std::array<const char*, static_cast<size_t>(FindingKind::Uninitialized) + 1> kKinds = {
    "race", "lifetime", "host", "graph-input", "capture", "uninitialized",
};

// torch drops exceptions of operator observers. So the main thread raises them before its next
// line.
int raisePending(void* error) {
  const std::unique_ptr<py::error_already_set> pending(static_cast<py::error_already_set*>(error));
  pending->restore();
  return -1;
}

void raiseSoon(const py::error_already_set& error) {
  auto pending = std::make_unique<py::error_already_set>(error);
  if (Py_AddPendingCall(&raisePending, pending.get()) == 0) {
    static_cast<void>(pending.release());
  }
}

// Receives the exception that reportLateFindings() of this thread must raise; null otherwise.
thread_local std::unique_ptr<py::error_already_set>* error_to_raise = nullptr;

void report(const Finding& finding) {
  if (Py_IsInitialized() == 0) {
    return;
  }
  const py::gil_scoped_acquire acquired;
  if (!handler()) {
    return;
  }
  py::dict result;
  result["kind"] = kKinds.at(static_cast<size_t>(finding.kind));
  result["earlier"] = describe(finding.earlier);
  result["later"] = describe(finding.later);
  result["allocation"] = describe(finding.allocation);
  result["reused"] = describe(finding.reused);
  result["waited"] = describe(finding.waited);
  result["is_in_capture"] = finding.is_in_capture;
  result["error"] = finding.error;
  result["unwritten"] = finding.unwritten;
  try {
    handler()(result);
  } catch (py::error_already_set& error) {
    if (error_to_raise != nullptr) {
      if (*error_to_raise == nullptr) {
        *error_to_raise = std::make_unique<py::error_already_set>(error);
      }
      return;
    }
    if (finding.kind == FindingKind::Host || finding.is_late) {
      raiseSoon(error);
      return;
    }
    if (finding.kind == FindingKind::Capture) {
      return;  // the call raises the runtime's error
    }
    // As torch's own exceptions, so that the autograd engine passes it to the waiting thread.
    error.restore();
    python_error persistent;
    persistent.persist();
    throw persistent;
  }
}

void enable(py::object report_finding, bool finds_races, bool finds_lifetimes, bool is_exact,
            bool finds_host_accesses, bool watches_pages, bool finds_refused_calls,
            bool finds_uninitialized) {
  handler() = std::move(report_finding);
  const py::gil_scoped_release released;
  const bool was_on = isSanitizerOn();
  enableSanitizer({finds_races, finds_lifetimes, is_exact, finds_host_accesses, watches_pages,
                   finds_refused_calls, finds_uninitialized},
                  &report);
  if (!was_on && finds_host_accesses && watches_pages) {
    // Its free blocks cannot be watched.
    at::getHostAllocator(kDeviceType)->empty_cache();
  }
}

void reportTouches() {
  std::unique_ptr<py::error_already_set> error;
  error_to_raise = &error;
  withoutGil(&reportLateFindings);
  error_to_raise = nullptr;
  if (error != nullptr) {
    throw py::error_already_set(*error);
  }
}

void disable() {
  withoutGil(&disableSanitizer);
  dropUnusedStacks();
}

py::dict counts() {
  const SanitizerCounts counts = withoutGil(&sanitizerCounts);
  py::dict result;
  result["launches"] = counts.launches;
  result["not_seen"] = counts.not_seen;
  result["undecided"] = counts.undecided;
  result["forgotten"] = counts.forgotten;
  result["live_allocations"] = counts.live_allocations;
  result["remembered_accesses"] = counts.remembered_access;
  result["remembered_launches"] = counts.remembered_launches;
  result["bytes"] = counts.bytes;
  result["open_hazards"] = counts.open_hazards;
  result["copies_not_watched"] = counts.copies_not_watched;
  result["pages_opened"] = counts.pages_opened;
  const SharedStackCounts stacks = sharedStackCounts();
  result["stacks"] = stacks.stacks;
  result["bytes_of_stacks"] = stacks.bytes;
  result["kernels_not_seen"] = counts.kernels_not_seen;
  return result;
}

void bindSanitizer(py::module_& m) {
  // docs: bindings-sanitizer
  m.def("_sanitizer_enable", &enable);
  m.def("_sanitizer_disable", &disable);
  m.def("_sanitizer_is_enabled", &isSanitizerOn);
  m.def("_sanitizer_counts", &counts);
  m.def("_sanitizer_set_frame_dumper", &setFrameDumper);
  m.def("_sanitizer_report_touches", &reportTouches);
  m.def("_sanitizer_only_writes", &onlyWrites);
  m.def("_sanitizer_reads_only_sizes", &readsOnlySizes);
  // docs: end
}

const Bindings kSanitizerBindings(&bindSanitizer);

}  // namespace

}  // namespace torch_openreg
