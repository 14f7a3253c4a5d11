// What the sanitizer has found, as the bindings take it.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/sanitizer/Stack.h"

namespace c10::openreg {

enum class FindingKind : uint8_t { Race, Lifetime, Host, GraphInput, Capture, Uninitialized };

// One of the two accesses, or the allocation of memory that was first used elsewhere.
struct AccessReport {
  std::string kernel{};            // the operator
  const char* argument = nullptr;  // its name, if the call said it
  int operand = 0;                 // else which of those that are read, or of those written
  bool is_write = false;
  bool is_allocation = false;
  Stream stream{Stream::DEFAULT, Device(DeviceType::CPU)};
  bool is_host = false;  // the host's own access: of no stream
  int thread = 0;        // of the host, the operating system's number, if no operator made it
  int64_t offset = 0;    // of its first byte in the allocation
  size_t nbytes = 0;
  ScalarType dtype = ScalarType::Undefined;
  std::vector<int64_t> sizes{};
  Stack stack{};
  Stack captured{};  // where a graph's kernel was captured
};

// Both where it was allocated and, if it has been, where it was freed.
struct AllocationReport {
  size_t size = 0;
  bool has_stream = false;  // else it was there before the sanitizer was on
  Stream stream{Stream::DEFAULT, Device(DeviceType::CPU)};
  bool is_host_memory = false;
  Stack allocated{};
  bool is_freed = false;
  Stack freed{};
};

// Race, Lifetime, Host: both accesses. GraphInput: the later one is the replay, the earlier one the
// capture. Capture: the later one is the call, or the last launch on the branch; the earlier one
// has the stack of the beginning. Uninitialized: the later one reads, the earlier one is the
// allocation, or what a replay would have written.
struct Finding {
  FindingKind kind;
  AccessReport earlier{};
  AccessReport later{};
  AllocationReport allocation{};  // of the earlier access
  AllocationReport reused{};      // Lifetime, after a free: of the later access
  bool has_waited = false;        // the stream of the later access for that of the earlier one:
  Stack waited{};                 // where it last did
  bool is_in_capture = false;     // both are of one graph
  int32_t error = 0;              // Capture: the runtime's code
  int64_t unwritten = 0;          // Uninitialized: the first such byte, counted as offsets are
};

}  // namespace c10::openreg
