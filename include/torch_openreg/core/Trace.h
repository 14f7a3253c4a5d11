// What the programs of a kernel access in fact, for kernels that can tell: such as those whose
// addresses are computed by the kernel.
//
// A launcher of such kernels asks findTrace() before it records the operands of the launch. If an
// observer has made a trace for the launch, the kernel tells it of each access, as it runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// A kernel. Lives as long as the process.
struct TracedKernel {
  const char* name;
  std::vector<std::string> arguments;  // their names
  // Lines of the source that access memory: file and line, from the innermost function to the
  // kernel, with ", called at " between them.
  std::vector<std::string> places;
};

enum class TracedAccessKind : uint8_t { Read, Written, Atomic };

// Bytes that a program uses. Programs of a grid run in no order, but for what their atomic accesses
// to the same bytes order.
struct TracedAccess {
  TracedAccessKind kind;
  int32_t place;     // an index of TracedKernel::places, or -1
  int32_t argument;  // from which the address was computed: an index of TracedKernel::arguments
                     // that is a tensor, or -1
  std::array<uint32_t, 3> program;
  uintptr_t address;  // of the device
  size_t nbytes;
};

// The accesses of one launch.
//
// Threads: one at a time, a stream's worker. It runs one program after the other. Locks may be
// taken that no one holds while waiting for a stream, but not the GIL.
// Capture: the kernel begins and ends in each replay.
class Trace {
 public:
  virtual ~Trace() = default;

  // Before the first program.
  virtual void begin() noexcept = 0;

  // Before the access happens.
  virtual void access(const TracedAccess& access) noexcept = 0;

  // After the last program, or after a failure: then not all programs have run to their ends.
  virtual void end(bool is_complete) noexcept = 0;
};

// Whether an observer makes traces. For those who prepare for it.
OPENREG_EXPORT bool wantsTraces();

// The trace for the kernel that this thread launches next; null if no observer has made one. The
// launch owns it, and its captured form.
OPENREG_EXPORT std::shared_ptr<Trace> findTrace(const OpenRegStream& stream,
                                                const TracedKernel& kernel);

}  // namespace c10::openreg
