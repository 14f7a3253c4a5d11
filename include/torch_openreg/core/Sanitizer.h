// What the backend tells the sanitizer of streams: which work touches which bytes, what orders it,
// and how memory lives. docs/sanitizer.md says what it makes of it; csrc/sanitizer defines it.
//
// Note [What orders work]
// Order is told where a program asks for it by CUDA's contract: in the guard, the bindings and the
// operators that give the host a value. What waits here for reasons of its own, such as the first
// call of a fallback or the allocator's look at an event, is told to nobody, since no program may
// rely on it.
//
// Of every function below:
//   Threads  Any thread may call, but the worker of a stream.
//   Locks    None may be held: stacks are gathered, which takes the GIL.
//   Order    A call comes before the launch, wait or free that it is about, if that is what it
//            describes, and after a wait of the host that it says is over.
//   Errors   recordAccesses() and recordRange() throw what the program is to see of a finding;
//            the launch that they come before is then left out. The others do not throw.
// While the sanitizer is off, nobody calls them: isSanitizerOn() is what everyone asks first.
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
  const TensorImpl* tensor;  // undefined ones and such without memory are ignored
  bool is_written;
  const char* name = nullptr;   // of the argument, if the caller knows it; lives as long as the
                                // process. Else the schema is asked, in a report.
  bool is_host_memory = false;  // pinned
  bool is_updated = false;      // it is written, and its old contents are read
};

// A kernel that is about to be launched on a stream. `kernel` is the operator, such as
// "aten::add.out", and lives as long as the process.
OPENREG_EXPORT void recordAccesses(const OpenRegStream& stream, const char* kernel,
                                   ArrayRef<Operand> operands);

// The same for a range of device memory.
OPENREG_EXPORT void recordRange(const OpenRegStream& stream, const char* kernel,
                                const void* address, size_t nbytes, bool is_written);

// The same for bytes that are copied as they are, whether anybody has written them or not.
OPENREG_EXPORT void recordMove(const OpenRegStream& stream, const char* kernel, const void* to,
                               const void* from, size_t nbytes);

// A launch of an operator's kernel. If recordAccesses() has not been called for it, on this thread
// and since the last launch, it is counted as not seen.
OPENREG_EXPORT void noteLaunch(const char* kernel);

// --- Order

OPENREG_EXPORT void noteEventRecorded(const void* event, const OpenRegStream& stream);
OPENREG_EXPORT void noteEventAwaited(const void* event, const OpenRegStream& stream);
OPENREG_EXPORT void noteEventDestroyed(const void* event);

// Later work on `stream` waits for all work on `other` so far.
OPENREG_EXPORT void noteStreamAwaited(const OpenRegStream& stream, const OpenRegStream& other);

// The host has waited, or has been told that there is nothing to wait for.
OPENREG_EXPORT void noteEventDone(const void* event);
OPENREG_EXPORT void noteStreamDone(const OpenRegStream& stream);
OPENREG_EXPORT void noteDeviceDone(DeviceIndex device);

// --- Memory

// The caching allocator has given memory out for a stream, or has been told of another stream, or
// takes memory back.
OPENREG_EXPORT void noteAllocated(const void* address, size_t size, const OpenRegStream& stream,
                                  MempoolId_t pool);
OPENREG_EXPORT void noteUsedOn(const void* address, const OpenRegStream& stream);
OPENREG_EXPORT void noteFreed(const void* address, const OpenRegStream& owner,
                              MempoolId_t pool) noexcept;

// The memory that the address is in has been written by somebody who is not seen here, such as
// another process.
OPENREG_EXPORT void noteWritten(const void* address);

// --- Graphs, by the number of their capture

// Whoever told the beginning tells the end, be it that the capture was of no use.
OPENREG_EXPORT void noteCaptureBegun(uint64_t capture, const OpenRegStream& stream);
OPENREG_EXPORT void noteCaptureEnded(uint64_t capture, bool is_valid) noexcept;

// A call that the runtime has refused with this error, as no graph can repeat it. `caller` is as
// for throwRuntimeError. Errors of other kinds are ignored.
OPENREG_EXPORT void noteRefusedCall(orError_t error, const char* caller) noexcept;

// A replay that is about to be launched.
// Errors: as recordAccesses().
OPENREG_EXPORT void recordReplay(uint64_t capture, const OpenRegStream& stream);
OPENREG_EXPORT void forgetCapture(uint64_t capture);

}  // namespace c10::openreg
