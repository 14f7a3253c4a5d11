// Observers of what happens on streams and in memory: which work accesses which bytes, what orders
// it, and how long memory lives. The sanitizer of streams is one, torch's GPU trace another. The
// backend reports each event here and has no other connection to them.
//
// Note [What orders work]
// Order is reported where a program asks for it by CUDA's contract: in the guard, the bindings and
// the operators that give the host a value. Waits that the backend adds for reasons of its own,
// such as a call of the fallback on the calling thread or the allocator's look at an event, are not
// reported, since no program may rely on them.
//
// Of every event below:
//   Threads  Any thread may report, except the worker of a stream.
//   Locks    None may be held: an observer may gather a stack or call Python, which takes the GIL.
//   Order    An access, replay or free is reported before it is enqueued or done. A record, a wait,
//            a synchronization or an allocation is reported after it has succeeded.
//   Errors   The functions for accesses and replays may throw; the launch that they come before is
//            then left out. So may those for shortages; the allocation then fails. The others do
//            not throw.
//   Verdict  The functions for accesses say whether the work is to run. Work that is skipped keeps
//            its place in the order of the stream, and writes nothing; so do its replays if it is
//            captured. The calling thread leaves its own work out, too, such as a copy for which it
//            waits. A number that it would read is then zero, and tensors that it would compare are
//            equal if their sizes are.
// Without an observer, a report costs one relaxed load.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <openreg/error.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "torch_openreg/core/Macros.h"
#include "torch_openreg/core/Stream.h"

namespace c10 {
struct GeneratorImpl;
}

namespace c10::openreg {

// A tensor that a kernel reads or writes.
struct Operand {
  const TensorImpl* tensor;  // undefined ones and those without memory are ignored
  bool is_written;
  const char* name = nullptr;   // of the argument, if the caller knows it; lives as long as the
                                // process. Else a report takes it from the schema.
  bool is_host_memory = false;  // on the CPU; ignored unless pinned
  bool is_updated = false;      // it is written, and its old contents are read
  bool is_unknown = false;      // it may be read, written, both or neither; is_written is false
};

using OperandList = c10::SmallVector<Operand, 8>;

// How a kernel accesses a range of memory.
enum class RangeAccess : uint8_t {
  Read,
  Written,
  Updated,  // read and written
  Unknown,  // any of them, or none
};

// A range of device memory, or of pinned memory, that a kernel accesses.
struct Range {
  const void* address;
  size_t nbytes;
  RangeAccess access;
};

// What the programs of a kernel access; see Trace.h.
class Trace;
struct TracedKernel;

// What an observer says of work that is about to be enqueued.
enum class [[nodiscard]] Verdict : uint8_t { Run, Skip };

// What an observer says when the host asks whether work is done.
enum class [[nodiscard]] Progress : uint8_t {
  Asked,    // the stream answers
  Awaited,  // the host waits for the work, so it is done
  Pending,  // it is not done
};

// When freed memory that other streams use is reused.
enum class [[nodiscard]] Reuse : uint8_t {
  WhenDone,  // when these streams have passed the free
  InOrder,   // at once: the memory's own stream waits for the others
  NotYet,    // not before an observer says something else; asked at each allocation
};

// docs: observer
// Each function is called for one kind of event, and does nothing unless it is overridden. Names of
// kernels are those of operators, such as "aten::add.out", and live as long as the process.
class Observer {
 public:
  // --- Work that is about to be enqueued

  // A kernel with its operands. `schema_only` says that no more is known of them than the schema
  // of the operator: it does not tell whether a kernel reads the contents of a tensor.
  virtual Verdict kernelAccess(const OpenRegStream& /*stream*/, const char* /*kernel*/,
                               ArrayRef<Operand> /*operands*/, bool /*schema_only*/) {
    return Verdict::Run;
  }

  // A kernel with ranges of memory, for kernels whose arguments are no tensors.
  virtual Verdict rangeAccess(const OpenRegStream& /*stream*/, const char* /*kernel*/,
                              ArrayRef<Range> /*ranges*/) {
    return Verdict::Run;
  }

  // A kernel that can tell what its programs access, before its kernelAccess on the same thread.
  // The trace, if not null, is told of that as the kernel runs. The first observer that makes one
  // has it.
  virtual bool wantsTraces() { return false; }
  virtual std::shared_ptr<Trace> kernelTrace(const OpenRegStream& /*stream*/,
                                             const TracedKernel& /*kernel*/) {
    return nullptr;
  }

  // Bytes that are copied as they are, initialized or not.
  virtual Verdict byteCopy(const OpenRegStream& /*stream*/, const char* /*kernel*/,
                           const void* /*to*/, const void* /*from*/, size_t /*nbytes*/) {
    return Verdict::Run;
  }

  // A kernel that draws numbers from the engine is about to be enqueued, skipped or not.
  virtual void numberDraw(const OpenRegStream& /*stream*/, GeneratorImpl& /*engine*/) {}

  // The launch of an operator's kernel. One of the functions above was called before on the same
  // thread, if its operands are known.
  virtual void kernelLaunch(const char* /*kernel*/) {}

  // The replay of the graph of a capture.
  virtual void graphReplay(uint64_t /*capture*/, const OpenRegStream& /*stream*/) {}

  // --- Order

  // A stream of the pool is handed out, for the first time or again.
  virtual void streamCreation(const OpenRegStream& /*stream*/) {}
  virtual void eventRecord(const void* /*event*/, const OpenRegStream& /*stream*/) {}
  virtual void eventWait(const void* /*event*/, const OpenRegStream& /*stream*/) {}
  virtual void eventDeletion(const void* /*event*/) noexcept {}

  // Later work on `stream` waits for all work on `other` so far.
  virtual void streamWait(const OpenRegStream& /*stream*/, const OpenRegStream& /*other*/) {}

  // The host has waited.
  virtual void eventSynchronization(const void* /*event*/) {}
  virtual void streamSynchronization(const OpenRegStream& /*stream*/) {}
  virtual void deviceSynchronization(DeviceIndex /*device*/) {}

  // The program asks whether an event's record, or all work of a stream, is complete.
  virtual Progress eventQuery(const void* /*event*/) { return Progress::Asked; }
  virtual Progress streamQuery(const OpenRegStream& /*stream*/) { return Progress::Asked; }

  // A query has answered that there is nothing to wait for.
  virtual void eventCompletion(const void* /*event*/) {}
  virtual void streamCompletion(const OpenRegStream& /*stream*/) {}

  // --- Memory

  // The caching allocator hands memory out for work on a stream, is told of another stream that
  // uses it, or takes it back. `size` is that of the block, `requested` what the program may use.
  virtual void memoryAllocation(const void* /*address*/, size_t /*requested*/, size_t /*size*/,
                                const OpenRegStream& /*stream*/, MempoolId_t /*pool*/) {}
  virtual void memoryUse(const void* /*address*/, const OpenRegStream& /*stream*/) {}
  virtual void memoryDeallocation(const void* /*address*/, size_t /*size*/,
                                  const OpenRegStream& /*owner*/, MempoolId_t /*pool*/) noexcept {}

  // Memory that was freed and that other streams than its own use: is it to be reused?
  virtual Reuse memoryReuse(const void* /*address*/, ArrayRef<OpenRegStream> /*used_on*/) {
    return Reuse::WhenDone;
  }

  // The memory that contains the address was written by something that reports nothing here, such
  // as another process.
  virtual void memoryWrite(const void* /*address*/) {}

  // An allocation has found no room, or the program empties the caches of all devices (then the
  // device is -1): an observer may free memory that it keeps. Called before the cache is released.
  virtual void memoryShortage(DeviceIndex /*device*/) {}

  // An allocation fails: what was requested, what the process may reserve on the device, and what
  // is free there. The allocation throws afterwards, unless an observer throws.
  virtual void memoryExhaustion(DeviceIndex /*device*/, size_t /*requested*/, size_t /*allowed*/,
                                size_t /*free*/) {}

  // The cache of pinned memory hands a block out or takes it back, or the host goes on while a copy
  // from or to the block may be pending.
  virtual void pinnedAllocation(const void* /*address*/, size_t /*size*/) {}
  virtual void pinnedDeallocation(const void* /*address*/) noexcept {}
  virtual void pinnedCopy(const void* /*address*/) {}

  // --- Graphs, by the number of their capture

  virtual void captureBegin(uint64_t /*capture*/, const OpenRegStream& /*stream*/) {}
  virtual void captureEnd(uint64_t /*capture*/, bool /*is_valid*/) noexcept {}
  virtual void graphDeletion(uint64_t /*capture*/) {}

  // The runtime has refused a call with an error. `caller` is as for throwRuntimeError.
  virtual void callRefusal(orError_t /*error*/, const char* /*caller*/) noexcept {}

 protected:
  ~Observer() = default;
};
// docs: end

constexpr size_t kMaxObservers = 4;

// Which events an observer is called for.
enum class ObservedEvents : uint8_t {
  All,
  Shortages,  // memoryShortage and memoryExhaustion: costs nothing until there is one
};

// Starts to call an observer, which lives as long as the process and is not called yet.
// Errors: throws if there are kMaxObservers for these events.
OPENREG_EXPORT void addObserver(Observer& observer, ObservedEvents events = ObservedEvents::All);

// Ends it. Calls that other threads have begun may still be running. Does nothing if the observer
// is not called. Safe in a child after a fork.
OPENREG_EXPORT void removeObserver(Observer& observer) noexcept;

namespace detail {

OPENREG_EXPORT extern std::atomic<int> observer_count;

OPENREG_EXPORT void forEachObserver(c10::function_ref<void(Observer&)> call);

// Also those of ObservedEvents::Shortages.
OPENREG_EXPORT void forEachObserverOfShortages(c10::function_ref<void(Observer&)> call);

}  // namespace detail

// Whether there is an observer. For those who gather what they report.
inline bool isObserved() noexcept {
  return C10_UNLIKELY(detail::observer_count.load(std::memory_order_relaxed) != 0);
}

// Reports an event:
//   observe(&Observer::eventRecord, event, stream);
template <bool is_noexcept, typename... Parameters>
inline void observe(void (Observer::*event)(Parameters...) noexcept(is_noexcept),
                    std::type_identity_t<Parameters>... arguments) noexcept(is_noexcept) {
  if (isObserved()) {
    detail::forEachObserver([&](Observer& observer) { (observer.*event)(arguments...); });
  }
}

// Reports a shortage of memory.
template <typename... Parameters>
void observeShortage(void (Observer::*event)(Parameters...),
                     std::type_identity_t<Parameters>... arguments) {
  detail::forEachObserverOfShortages([&](Observer& observer) { (observer.*event)(arguments...); });
}

// Reports what observers may decide, such as work. The first value of the enumeration is that of an
// observer that decides nothing.
template <typename Answer, typename... Parameters>
  requires std::is_enum_v<Answer>
inline Answer observe(Answer (Observer::*event)(Parameters...),
                      std::type_identity_t<Parameters>... arguments) {
  Answer answer{};
  if (isObserved()) {
    detail::forEachObserver([&](Observer& observer) {
      if (const Answer one = (observer.*event)(arguments...); one != Answer{}) {
        answer = one;
      }
    });
  }
  return answer;
}

// Reports the operands of a kernel that is about to be launched on a stream.
inline Verdict recordAccesses(const OpenRegStream& stream, const char* kernel,
                              ArrayRef<Operand> operands) {
  return observe(&Observer::kernelAccess, stream, kernel, operands, /*schema_only=*/false);
}

// The same for operands that have to be gathered: `gather` adds them to an OperandList and is
// called only if there is an observer.
template <typename Gather>
Verdict observeAccesses(const OpenRegStream& stream, const char* kernel, const Gather& gather) {
  if (!isObserved()) {
    return Verdict::Run;
  }
  OperandList operands;
  gather(operands);
  return recordAccesses(stream, kernel, operands);
}

// On the current stream of a device, which is looked up only then.
template <typename Gather>
Verdict observeAccesses(DeviceIndex device, const char* kernel, const Gather& gather) {
  return isObserved() ? observeAccesses(getCurrentOpenRegStream(device), kernel, gather)
                      : Verdict::Run;
}

}  // namespace c10::openreg
