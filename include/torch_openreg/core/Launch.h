// Launches of kernels: all work of streams is enqueued by the functions of this header.
//
// launchKernel<"aten::add.out">(stream, closure) moves the closure into the stream's queue and
// returns; the stream's worker calls it later. Closures up to OPENREG_MAX_INLINE_CLOSURE_SIZE bytes
// cost no heap allocation.
//
// What a closure may hold: anything that can be moved without throwing. It should not hold an
// openreg tensor only to keep its memory alive: memory is reused in stream order, so the address is
// enough (see Note [Lifetimes of enqueued work] in include/torch_openreg/aten/TensorAlias.h).
//
// How often a closure is called: once, or not at all if the stream is in an error state; if it is
// captured in a graph, once per replay. So it is const.
//
// What a closure may do: throw, or return a KernelError. The stream then fails, and the next
// synchronizing call throws the exception with the kernel's name
// (include/torch_openreg/core/Exception.h). A closure must not wait for its own stream and must not
// take the GIL. If it has describe(orActivityRecord*), that function completes its trace record
// (openreg/stream.h).
//
// For every launch below:
//   Threads  Any thread may launch, several at a time onto one stream. Launches of one thread onto
//            a stream run in the order of the calls. The stream's worker calls the closure and
//            destroys it; the stream's device is current there.
//   GIL      Neither needed nor released. A launch onto a full queue waits for room, with the GIL
//            if the caller holds it; this is why closures must not take it.
//   Capture  Allowed. While the stream captures, the closure becomes a node of the graph, which
//            owns it, and nothing runs.
//   Owns     The queue owns the closure once the launch has returned; before, the caller's frame.
//   Errors   Throws if nothing was enqueued: in a forked child, onto a stream that was destroyed,
//            into an invalid capture. The kernel's own errors are reported later, except with
//            OPENREG_LAUNCH_BLOCKING=1, where a launch waits for its kernel.
#pragma once

#include <openreg/stream.h>
#include <openreg/trace.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Observer.h"
#include "torch_openreg/core/Stream.h"

namespace c10::openreg {

// A kernel's name as a template argument, so that it lives as long as the process.
template <std::size_t Size>
struct KernelName {
  // NOLINTNEXTLINE(google-explicit-constructor): a string literal must convert
  constexpr KernelName(const char (&literal)[Size]) {
    for (std::size_t i = 0; i < Size; ++i) {
      text[i] = literal[i];
    }
  }
  char text[Size];
};

namespace detail {

template <typename Fn>
orError_t runClosure(void* closure) {
  using Result = std::invoke_result_t<const Fn&>;
  try {
    if constexpr (std::is_same_v<Result, KernelError>) {
      const KernelError error = (*static_cast<const Fn*>(closure))();
      return C10_LIKELY(error.code == orSuccess) ? orSuccess : reportKernelError(error);
    } else {
      (*static_cast<const Fn*>(closure))();
      return orSuccess;
    }
  } catch (...) {
    return reportKernelException(std::current_exception());
  }
}

template <typename Fn>
void moveClosure(void* to, void* from) {
  Fn* source = static_cast<Fn*>(from);
  new (to) Fn(std::move(*source));
  source->~Fn();
}

template <typename Fn>
void destroyClosure(void* closure) {
  static_cast<Fn*>(closure)->~Fn();
}

// Closures with describe(orActivityRecord*) add details to their trace records.
template <typename Fn>
concept Describable =
    requires(const Fn& function, orActivityRecord* record) { function.describe(record); };

template <typename Fn>
constexpr orClosureDescribeFn describerOf() {
  if constexpr (Describable<Fn>) {
    return [](const void* closure, orActivityRecord* record) {
      static_cast<const Fn*>(closure)->describe(record);
    };
  } else {
    return nullptr;
  }
}

}  // namespace detail

// The runtime's descriptor for closures of one type. `name` must live as long as the process.
template <typename Fn>
constexpr orKernel describeKernel(const char* name) {
  return {
      name,
      &detail::runClosure<Fn>,
      std::is_trivially_copyable_v<Fn> ? nullptr : &detail::moveClosure<Fn>,
      std::is_trivially_destructible_v<Fn> ? nullptr : &detail::destroyClosure<Fn>,
      detail::describerOf<Fn>(),
  };
}

namespace detail {

template <KernelName Name, typename Fn>
inline constexpr orKernel kKernel = describeKernel<Fn>(Name.text);

// A function that returns `closure`, moved if the caller gave it up. To be called once.
template <typename Closure>
auto returning(Closure&& closure) {
  return [&closure]() -> std::decay_t<Closure> { return std::forward<Closure>(closure); };
}

}  // namespace detail

// docs: launch-kernel
// Enqueues a call of the closure that `make()` returns. `kernel` describes its type. It and its
// name must live until the call is done, and as long as the graph if the stream is capturing. The
// closure is constructed in the frame of the launch, from where it moves into the queue, and is not
// moved before. `verdict` is what observers have said of the kernel.
template <typename Make>
void launchMadeKernel(const orKernel& kernel, const OpenRegStream& stream, const Make& make,
                      Verdict verdict = Verdict::Run) {
  using Fn = std::invoke_result_t<const Make&>;
  static_assert(std::is_nothrow_move_constructible_v<Fn>,
                "a closure moves into the queue and must not throw there");
  static_assert(alignof(Fn) <= OPENREG_CLOSURE_ALIGNMENT, "the queue aligns closures less");
  alignas(Fn) std::byte storage[sizeof(Fn)];
  Fn* closure = new (storage) Fn(make());
  const orError_t error = orLaunchKernel(&kernel, storage, sizeof(Fn), stream.stream(),
                                         verdict == Verdict::Skip ? orLaunchSkip : orLaunchDefault);
  if (C10_UNLIKELY(error != orSuccess)) {
    closure->~Fn();
    throwLaunchError(error, kernel.name, {__func__, __FILE__, uint32_t(__LINE__)});
  }
}

// The same for a closure that exists: a call of `function`.
template <typename Function>
void launchKernel(const orKernel& kernel, const OpenRegStream& stream, Function&& function,
                  Verdict verdict = Verdict::Run) {
  launchMadeKernel(kernel, stream, detail::returning(std::forward<Function>(function)), verdict);
}

// The same for a kernel whose name is known at compile time.
template <KernelName Name, typename Function>
void launchKernel(const OpenRegStream& stream, Function&& function,
                  Verdict verdict = Verdict::Run) {
  launchKernel(detail::kKernel<Name, std::decay_t<Function>>, stream,
               std::forward<Function>(function), verdict);
}
// docs: end

}  // namespace c10::openreg
