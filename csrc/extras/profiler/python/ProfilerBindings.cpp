#include <openreg/range.h>
#include <openreg/trace.h>
#include <pybind11/stl.h>

#include "csrc/extras/profiler/Collection.h"
#include "csrc/extras/profiler/GpuTrace.h"
#include "csrc/python/Bindings.h"
#include "torch_openreg/core/Exception.h"

namespace torch_openreg {
namespace {

namespace py = pybind11;
using at::openreg::Collection;

// The exception that is set, if any, is put back afterwards.
void runTraceCall(c10::function_ref<void()> call) {
  if (Py_IsInitialized() == 0) {
    return;
  }
  const py::gil_scoped_acquire gil;
  const py::error_scope error;
  call();
}

const char* kindOf(const orActivityRecord& record) {
  switch (record.kind) {
    case orActivityKernel:
      return "kernel";
    case orActivityMemcpy:
      return "memcpy";
    case orActivityMemset:
      return "memset";
    case orActivityHostFunc:
      return "host function";
    case orActivitySynchronize:
      return "synchronize";
    case orActivityMemory:
      return "memory";
    case orActivityRuntime:
      return "runtime";
    case orActivityRange:
      return "range";
    case orActivityMark:
      return "mark";
    default:
      return "unknown";
  }
}

std::optional<int64_t> streamOf(const orActivityRecord& record) {
  if (record.stream_id == UINT64_MAX) {
    return std::nullopt;
  }
  return static_cast<int64_t>(record.stream_id);
}

std::string describeActivity(const orActivityRecord& record) {
  return c10::str("<Activity ", kindOf(record), " '", record.name, "' device=", record.device,
                  " duration_ns=", record.end_ns - record.start_ns, ">");
}

int rangePush(const std::string& name) {
  int depth = 0;
  OPENREG_CHECK(orRangePush(name.c_str(), &depth));
  return depth;
}

int rangePop() {
  int depth = 0;
  OPENREG_CHECK(orRangePop(&depth));
  return depth;
}

uint64_t rangeStart(const std::string& name) {
  uint64_t id = 0;
  OPENREG_CHECK(orRangeStart(name.c_str(), &id));
  return id;
}

void bindProfiler(py::module_& m) {
  py::class_<orActivityRecord>(m, "_Activity")
      .def_property_readonly("kind", &kindOf)
      .def_readonly("name", &orActivityRecord::name)
      .def_readonly("device", &orActivityRecord::device)
      .def_property_readonly("stream", &streamOf)
      .def_readonly("correlation_id", &orActivityRecord::correlation_id)
      .def_readonly("thread_id", &orActivityRecord::thread_id)
      .def_readonly("submit_ns", &orActivityRecord::submit_ns)
      .def_readonly("start_ns", &orActivityRecord::start_ns)
      .def_readonly("end_ns", &orActivityRecord::end_ns)
      .def_readonly("bytes", &orActivityRecord::bytes)
      .def("__repr__", &describeActivity);

  // docs: bindings-profiler
  m.def("_range_push", &rangePush);
  m.def("_range_pop", &rangePop);
  m.def("_range_start", &rangeStart);
  m.def("_range_end", [](uint64_t id) { OPENREG_CHECK(orRangeEnd(id)); });
  m.def("_mark", [](const std::string& name) { OPENREG_CHECK(orMark(name.c_str())); });
  m.def("_profiler_pause", &Collection::pause);
  m.def("_profiler_resume", &Collection::resume);
  m.def("_start_gpu_trace", [] { at::openreg::startGpuTrace(&runTraceCall); });
  m.def("_collect_begin", &Collection::beginAlone);
  m.def("_collect_end", &Collection::endAlone);
  // docs: end
}

const Bindings kProfilerBindings(&bindProfiler);

}  // namespace

}  // namespace torch_openreg
