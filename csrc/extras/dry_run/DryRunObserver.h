// Dry runs: a program runs, and its kernels do not. This is an observer
// (torch_openreg/core/Observer.h) of the backend, which decides what is skipped.
//
// Note [What a dry run computes]
// Sizes, memory and errors of a program seldom depend on the contents of large tensors, and a
// kernel that does not run touches no page of device memory. So work is skipped if one of its
// operands is large (more than 64 KiB). Work on small operands runs: what programs read on the
// host, or compute sizes from, is mostly small and comes from the host, such as lengths of
// sequences, states of random generators, and numbers of steps.
//
// Whether an operand is large follows from its storage and not from the part that a view shows of
// it. So all of a large storage is skipped, and neither its contents nor its pages depend on which
// parts of it a program writes.
//
// Note [Made-up values]
// A small result of skipped work is filled with zeros, or with ones if asked for, in stream order,
// since it would otherwise hold what the last owner of the memory has left there. It is made up,
// and so is each small result of a kernel that reads something made up, until a storage is written
// as a whole by work that reads nothing of that kind, such as a copy from the host. All large
// storages are made up. When the host reads a made-up value, this is counted and reported, since
// the program may take another path than with the real one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// A storage of the host with more bytes is not filled, whether by skipped work with zeros or by the
// program; see Note [Large tensors on the host] in HostFills.h.
constexpr size_t kLargeHostBytes = size_t{16} << 20;

// When work of other streams is over for the memory that they use, and for queries: the speed of a
// device decides it, and there is none.
enum class DryRunTiming : uint8_t {
  Early,  // at once
  Late,   // when the host has waited
};

struct DryRunCounts {
  uint64_t launches_run = 0;
  uint64_t launches_skipped = 0;
  uint64_t bytes_copied = 0;
  uint64_t bytes_skipped = 0;  // of copies
  uint64_t made_up_reads = 0;  // by the host
};

// Called with the operator that gives the host a made-up value, on its thread. If it throws, the
// operator fails.
using ReportMadeUpRead = void (*)(const char* kernel);

struct DryRunOptions {
  DryRunTiming timing = DryRunTiming::Early;
  size_t small_bytes = size_t{64} << 10;  // of the largest storage that is not large
  std::string refusal{};  // if not empty, the error of each kernel: a setting that has no meaning
};

// Starts the dry run of this process; it never ends. Call once, and before there is work on a
// device.
OPENREG_EXPORT void startDryRun(DryRunOptions options, ReportMadeUpRead report);

OPENREG_EXPORT bool isDryRun() noexcept;

OPENREG_EXPORT DryRunCounts dryRunCounts();

}  // namespace at::openreg
