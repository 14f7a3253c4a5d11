// Records of work that a host thread does in place of a stream, for traces: a copy or a kernel that
// it runs itself, after it has waited for the stream, leaves the records that it would have left on
// the stream.
#pragma once

#include <openreg/memory.h>
#include <openreg/trace.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// What a trace says about a copy or a fill, besides its times. As a member of a closure it makes
// the closure describable; see Launch.h.
struct WorkDescription {
  orActivityKind kind;
  uint64_t bytes;
  int memcpy_kind;
  int peer_device;

  // An orMemcpyKind, and the other device of a copy between two.
  static WorkDescription copy(int memcpy_kind, uint64_t bytes, int peer_device = -1) {
    return {orActivityMemcpy, bytes, memcpy_kind, peer_device};
  }
  static WorkDescription fill(uint64_t bytes) { return {orActivityMemset, bytes, -1, -1}; }

  // The names by which tools know such work, CUDA's.
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

// The time from construction to destruction is the work's. Does nothing while tracing is off.
// Threads: the one that does the work makes and destroys it, after it has waited for the stream.
// Errors: the destructor warns and never throws.
class OPENREG_EXPORT HostWork {
 public:
  // A kernel. `name` lives as long as the process.
  HostWork(const OpenRegStream& stream, const char* name);
  // A copy or a fill.
  HostWork(const OpenRegStream& stream, const WorkDescription& description);
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;
  ~HostWork();

 private:
  void begin(const char* name);

  orStream_t stream_;
  orActivityRecord record_{};
  bool is_traced_ = false;
};

}  // namespace c10::openreg
