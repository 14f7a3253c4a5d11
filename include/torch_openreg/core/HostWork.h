// Records of work that a host thread does in place of a stream, for traces: a copy or a kernel that
// it runs itself, after it has waited for the stream, leaves the records that it would have left on
// the stream.
#pragma once

#include <openreg/trace.h>

#include <cstdint>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// What a trace says about a copy or a fill, besides its times. As a member of a closure it makes
// the closure describable; see Launch.h.
struct WorkDescription {
  orActivityKind kind = orActivityKernel;
  uint64_t bytes = 0;
  int memcpy_kind = -1;
  int peer_device = -1;

  static WorkDescription copy(int memcpy_kind, uint64_t bytes, int peer_device = -1) {
    return {orActivityMemcpy, bytes, memcpy_kind, peer_device};
  }
  static WorkDescription fill(uint64_t bytes) { return {orActivityMemset, bytes, -1, -1}; }

  void describe(orActivityRecord* record) const {
    record->kind = kind;
    record->bytes = bytes;
    record->memcpy_kind = memcpy_kind;
    record->peer_device = peer_device;
  }
};

// The time from construction to destruction is the work's. Does nothing while tracing is off.
class OPENREG_EXPORT HostWork {
 public:
  // `name` lives as long as the process.
  HostWork(const OpenRegStream& stream, const char* name, const WorkDescription& description = {});
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;
  ~HostWork();

 private:
  orStream_t stream_;
  orActivityRecord record_{};
  bool is_traced_ = false;
};

}  // namespace c10::openreg
