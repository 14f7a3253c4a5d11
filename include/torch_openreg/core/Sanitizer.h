// The backend's reports to the sanitizer: the memory accesses of work, the order of work, and
// allocations. docs/sanitizer.md describes the rules; csrc/sanitizer implements these functions.
//
// Note [What orders work]
// Order is reported only where CUDA's contract provides it to the program: in the guard, the
// bindings and the operators that return a value to the host. Waits that only this backend makes,
// such as the first call of a fallback or the allocator's query of an event, are not reported,
// because programs may not rely on them.
//
// For every function below:
//   Threads  Any thread except for the worker of a stream may call.
//   Locks    None may be held, because gathering stacks takes the GIL.
//   Order    Call before the launch, wait or free that is described, and after a host wait that is
//            reported as done.
//   Errors   recordAccesses() and recordRange() throw if the program is to see a finding as an
//            exception; the launch must then not be made. The others do not throw.
//
// Call them only if isSanitizerOn() returns true.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <openreg/error.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

namespace detail {
OPENREG_EXPORT extern std::atomic<bool> is_sanitizer_on;
}  // namespace detail

inline bool isSanitizerOn() noexcept {
  return C10_UNLIKELY(detail::is_sanitizer_on.load(std::memory_order_relaxed));
}

// A tensor that a kernel reads or writes.
struct Operand {
  const TensorImpl* tensor;  // ignored if undefined or without memory
  bool is_written;
  const char* name = nullptr;   // of the argument, if known; lives as long as the process. If it is
                                // null, reports use the schema.
  bool is_host_memory = false;  // pinned
  bool is_updated = false;      // it is written, and its old contents are read
};

// Records the accesses of a kernel that is about to be launched on a stream. `kernel` is the
// operator, such as "aten::add.out", and must live as long as the process.
OPENREG_EXPORT void recordAccesses(const OpenRegStream& stream, const char* kernel,
                                   ArrayRef<Operand> operands);

// The same for a range of device memory.
OPENREG_EXPORT void recordRange(const OpenRegStream& stream, const char* kernel,
                                const void* address, size_t nbytes, bool is_written);

// The same for bytes that are copied without being interpreted, whether they were written or not.
OPENREG_EXPORT void recordMove(const OpenRegStream& stream, const char* kernel, const void* to,
                               const void* from, size_t nbytes);

// Records a launch of an operator's kernel. If recordAccesses() was not called for it, on this
// thread and since the last launch, it is counted as not seen.
OPENREG_EXPORT void noteLaunch(const char* kernel);

// --- Order

OPENREG_EXPORT void noteEventRecorded(const void* event, const OpenRegStream& stream);
OPENREG_EXPORT void noteEventAwaited(const void* event, const OpenRegStream& stream);
OPENREG_EXPORT void noteEventDestroyed(const void* event);

// Later work on `stream` waits for all work on `other` so far.
OPENREG_EXPORT void noteStreamAwaited(const OpenRegStream& stream, const OpenRegStream& other);

// The host has waited, or has learned that nothing is pending.
OPENREG_EXPORT void noteEventDone(const void* event);
OPENREG_EXPORT void noteStreamDone(const OpenRegStream& stream);
OPENREG_EXPORT void noteDeviceDone(DeviceIndex device);

// --- Memory

// The caching allocator has allocated memory for a stream, has recorded another stream, or has
// freed memory.
OPENREG_EXPORT void noteAllocated(const void* address, size_t size, const OpenRegStream& stream,
                                  MempoolId_t pool);
OPENREG_EXPORT void noteUsedOn(const void* address, const OpenRegStream& stream);
OPENREG_EXPORT void noteFreed(const void* address, const OpenRegStream& owner,
                              MempoolId_t pool) noexcept;

// The memory that contains the address was written outside of this process's streams, for example
// by another process.
OPENREG_EXPORT void noteWritten(const void* address);

// --- Graphs, by the number of their capture

// Every noteCaptureBegun() must be followed by noteCaptureEnded(), also if the capture failed.
OPENREG_EXPORT void noteCaptureBegun(uint64_t capture, const OpenRegStream& stream);
OPENREG_EXPORT void noteCaptureEnded(uint64_t capture, bool is_valid) noexcept;

// Reports a call that the runtime refused with this error because a graph cannot repeat it.
// `caller` is as for throwRuntimeError. Other errors are ignored.
OPENREG_EXPORT void noteRefusedCall(orError_t error, const char* caller) noexcept;

// Records a replay that is about to be launched.
// Errors: as recordAccesses().
OPENREG_EXPORT void recordReplay(uint64_t capture, const OpenRegStream& stream);
OPENREG_EXPORT void forgetCapture(uint64_t capture);

}  // namespace c10::openreg
