#include "torch_openreg/core/TraceScope.h"

#include "torch_openreg/core/Exception.h"

namespace c10::openreg {

TraceScope::TraceScope(const OpenRegStream& stream, const char* name) : stream_(stream.stream()) {
  record_.kind = orActivityKernel;
  record_.memcpy_kind = -1;
  record_.peer_device = -1;
  begin(name);
}

TraceScope::TraceScope(const OpenRegStream& stream, const WorkDescription& description)
    : stream_(stream.stream()) {
  description.describe(&record_);
  begin(description.name());
}

void TraceScope::begin(const char* name) {
  int is_on = 0;
  OPENREG_CHECK(orTraceIsOn(&is_on));
  if (C10_LIKELY(is_on == 0)) {
    return;
  }
  is_traced_ = true;
  record_.name = name;
  OPENREG_CHECK(orTraceGetTime(&record_.start_ns));
}

TraceScope::~TraceScope() {
  if (C10_LIKELY(!is_traced_)) {
    return;
  }
  OPENREG_WARN_IF_FAILED(orTraceGetTime(&record_.end_ns));
  OPENREG_WARN_IF_FAILED(orTraceRecordWork(stream_, "run on the calling thread", &record_));
}

}  // namespace c10::openreg
