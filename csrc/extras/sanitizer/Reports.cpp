#include "csrc/extras/sanitizer/Reports.h"

namespace c10::openreg {

namespace {

// All fields except for the launch and its stack.
AccessReport describeBytes(const Access& access, uintptr_t base) {
  AccessReport report;
  report.argument = access.argument;
  report.operand = access.operand;
  report.is_write = access.is_write;
  report.is_allocation = access.is_allocation;
  report.offset = static_cast<int64_t>(access.runs.begin() - base);
  report.nbytes = access.runs.byteCount();
  report.dtype = access.dtype;
  report.sizes = access.sizes == nullptr ? std::vector<int64_t>() : *access.sizes;
  return report;
}

}  // namespace

AllocationReport describe(const State& state, const Allocation& allocation) {
  AllocationReport report;
  report.size = allocation.size;
  report.has_stream = allocation.owner.has_value();
  if (report.has_stream) {
    report.stream = state.streams()[*allocation.owner];
  }
  report.is_host_memory = allocation.is_host_memory;
  report.allocated = allocation.allocated;
  return report;
}

AccessReport describe(const State& state, const Access& access, uintptr_t base) {
  const Work& work = *access.work;
  AccessReport report = describeBytes(access, base);
  report.kernel = work.kernel;
  report.stream = state.streams()[work.stream];
  report.stack = work.stack;
  report.captured = work.captured == nullptr ? Stack() : *work.captured;
  return report;
}

AccessReport describe(const State& state, const Launch& launch, const MemoryAccess& memory_access,
                      uintptr_t base) {
  AccessReport report = describeBytes(memory_access.access, base);
  report.kernel = launch.kernel;
  report.stream = state.streams()[launch.place.stream];
  report.stack = launch.stack;
  if (memory_access.captured != nullptr) {
    report.kernel = memory_access.captured->kernel;
    report.captured = memory_access.captured->stack;
  }
  return report;
}

AccessReport describeHost(const Access& access, const char* kernel, const Stack& stack,
                          const Stream& stream, uintptr_t base) {
  AccessReport report = describeBytes(access, base);
  report.kernel = kernel;
  report.stream = stream;
  report.stack = stack;
  report.is_host = true;
  return report;
}

}  // namespace c10::openreg
