// Trace records of work that a host thread runs in place of a stream. A copy or a kernel that the
// host runs after it has waited for the stream leaves the same records as on the stream.
#pragma once

#include <openreg/memory.h>
#include <openreg/trace.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// The description of a copy or a fill in a trace, except for its times. A closure with this member
// is describable; see Launch.h.
struct WorkDescription {
  orActivityKind kind;
  uint64_t bytes;
  int memcpy_kind;
  int peer_device;

  // `memcpy_kind` is an orMemcpyKind, `peer_device` the other device of a copy between two.
  static WorkDescription copy(int memcpy_kind, uint64_t bytes, int peer_device = -1) {
    return {orActivityMemcpy, bytes, memcpy_kind, peer_device};
  }
  static WorkDescription fill(uint64_t bytes) { return {orActivityMemset, bytes, -1, -1}; }

  // CUDA's names, which tools recognize.
  static constexpr std::array<const char*, 6> kNames = {
      "Memset", "Memcpy HtoH", "Memcpy HtoD", "Memcpy DtoH", "Memcpy DtoD", "Memcpy PtoP"};

  std::size_t nameIndex() const {
    if (kind == orActivityMemset) {
      return 0;
    }
    switch (memcpy_kind) {
      case orMemcpyHostToHost:
        return 1;
      case orMemcpyHostToDevice:
        return 2;
      case orMemcpyDeviceToHost:
        return 3;
      default:
        return peer_device < 0 ? 4 : 5;
    }
  }
  const char* name() const { return kNames[nameIndex()]; }

  void describe(orActivityRecord* record) const {
    record->kind = kind;
    record->bytes = bytes;
    record->memcpy_kind = memcpy_kind;
    record->peer_device = peer_device;
  }
};

// Records the time from construction to destruction. Does nothing while tracing is off.
// Threads: created and destroyed on the thread that does the work, after it has waited for the
// stream.
// Errors: the destructor warns and never throws.
class OPENREG_EXPORT TraceScope {
 public:
  // A kernel. `name` must live as long as the process.
  TraceScope(const OpenRegStream& stream, const char* name);
  // A copy or a fill.
  TraceScope(const OpenRegStream& stream, const WorkDescription& description);
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;
  ~TraceScope();

 private:
  void begin(const char* name);

  orStream_t stream_;
  orActivityRecord record_{};
  bool is_traced_ = false;
};

}  // namespace c10::openreg
