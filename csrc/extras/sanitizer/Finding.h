// A finding of the sanitizer, as passed to the bindings.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/core/Stack.h"
#include "csrc/extras/sanitizer/AccessSet.h"

namespace c10::openreg {

enum class FindingKind : uint8_t { Race, Lifetime, Host, GraphInput, Capture, Uninitialized };

// One of the two accesses, or the allocation of memory that was first used elsewhere.
struct AccessReport {
  Access access{};
  uintptr_t base = 0;    // of the allocation
  std::string kernel{};  // the operator
  Stream stream{Stream::DEFAULT, Device(DeviceType::CPU)};
  Stack stack{};
  Stack captured{};      // where a graph's kernel was captured
  bool is_host = false;  // an access of the host, without a stream
  int thread = 0;        // of the host: the system's thread id, if no operator made the access
};

// Where memory was allocated and, if it was, freed.
struct AllocationReport {
  size_t size = 0;
  std::optional<Stream> stream{};  // none: allocated before the sanitizer was on
  bool is_host_memory = false;
  Stack allocated{};
  std::optional<Stack> freed{};
};

// A wait for the stream of the earlier access that does not order the later one after it.
struct WaitReport {
  Stack stack{};
  bool is_of_host = false;          // and not of the later access's stream
  bool is_after_the_other = false;  // made after the earlier work, for what came before that
};

// Race, Lifetime, Host: both accesses. A race may be between two programs of one launch.
// GraphInput: the later one is the replay, the earlier one the capture. Capture: the later one is
// the call, or the last launch on the branch; the earlier one has the stack where the capture
// began. Uninitialized: the later one reads, the earlier one is the allocation, or the write that a
// replay would have made.
struct Finding {
  FindingKind kind;
  AccessReport earlier{};
  AccessReport later{};
  AllocationReport allocation{};  // of the earlier access
  AllocationReport reused{};      // Lifetime, after a free: of the later access
  std::optional<WaitReport> waited{};
  bool is_in_capture = false;  // both are of one graph
  bool is_late = false;        // found after the launch of the later one
  int32_t error = 0;           // Capture: the runtime's code
  int64_t unwritten = 0;       // Uninitialized: offset of the first unwritten byte
};

}  // namespace c10::openreg
