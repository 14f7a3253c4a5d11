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
// take the GIL.
//
// What a closure may tell, by functions of its own: describe(orActivityRecord*) completes its trace
// record, and ownedBytes() returns how much memory it owns outside of the queue, such as a list of
// a thousand tensors. A queue that is full holds the host back, and it is full by bytes, too; see
// Note [Bounded queues] in openreg/stream.h.
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

#include <concepts>
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

}  // namespace detail

// Closures that complete their trace records.
template <typename Fn>
concept Describing =
    requires(const Fn& closure, orActivityRecord* record) { closure.describe(record); };

// Closures that own memory outside of the queue.
template <typename Fn>
concept Owning = requires(const Fn& closure) {
  { closure.ownedBytes() } -> std::same_as<size_t>;
};

// The runtime's descriptor for closures of one type. `name` must live as long as the process.
template <typename Fn>
constexpr orKernel describeKernel(const char* name) {
  orKernel described = {
      name,
      &detail::runClosure<Fn>,
      std::is_trivially_copyable_v<Fn> ? nullptr : &detail::moveClosure<Fn>,
      std::is_trivially_destructible_v<Fn> ? nullptr : &detail::destroyClosure<Fn>,
  };
  if constexpr (Describing<Fn>) {
    described.describe = [](const void* closure, orActivityRecord* record) {
      static_cast<const Fn*>(closure)->describe(record);
    };
  }
  if constexpr (Owning<Fn>) {
    described.owned_bytes = [](const void* closure) {
      return static_cast<const Fn*>(closure)->ownedBytes();
    };
  }
  return described;
}

// A closure that does not exist yet: a launch that is given this constructs the closure that
// `make()` returns in its own frame, instead of moving one there. To be passed on in the expression
// that makes it:
//   launchKernel<"aten::add.out">(stream, MadeBy{[&] { return closureOf(arguments); }});
template <typename Make>
struct MadeBy {
  const Make& make;
};
template <typename Make>
MadeBy(const Make&) -> MadeBy<Make>;

namespace detail {

template <KernelName Name, typename Fn>
inline constexpr orKernel kKernel = describeKernel<Fn>(Name.text);

// What a launch is given, as a closure: a copy of it, moved if the caller gave it up, or what it
// makes.
template <typename Closure>
std::decay_t<Closure> asClosure(Closure&& given) {
  return std::forward<Closure>(given);
}
template <typename Make>
auto asClosure(MadeBy<Make> given) {
  return given.make();
}

}  // namespace detail

// The type of the closure that a launch enqueues when it is given a `Closure`.
template <typename Closure>
using ClosureOf = decltype(detail::asClosure(std::declval<Closure>()));

// docs: launch-kernel
// Enqueues a call of `closure`, which may be MadeBy a function. `kernel` describes its type. It and
// its name must live until the call is done, and as long as the graph if the stream is capturing.
// `verdict` is what observers have said of the kernel.
template <typename Closure>
void launchKernel(const orKernel& kernel, const OpenRegStream& stream, Closure&& closure,
                  Verdict verdict = Verdict::Run) {
  using Fn = ClosureOf<Closure>;
  static_assert(std::is_nothrow_move_constructible_v<Fn>,
                "a closure moves into the queue and must not throw there");
  static_assert(alignof(Fn) <= OPENREG_CLOSURE_ALIGNMENT, "the queue aligns closures less");
  alignas(Fn) std::byte storage[sizeof(Fn)];
  Fn* own = new (storage) Fn(detail::asClosure(std::forward<Closure>(closure)));
  const orError_t error = orLaunchKernel(&kernel, storage, sizeof(Fn), stream.stream(),
                                         verdict == Verdict::Skip ? orLaunchSkip : orLaunchDefault);
  if (C10_UNLIKELY(error != orSuccess)) {
    own->~Fn();
    throwLaunchError(error, kernel.name, {__func__, __FILE__, uint32_t(__LINE__)});
  }
}

// The same for a kernel whose name is known at compile time.
template <KernelName Name, typename Closure>
void launchKernel(const OpenRegStream& stream, Closure&& closure, Verdict verdict = Verdict::Run) {
  launchKernel(detail::kKernel<Name, ClosureOf<Closure>>, stream, std::forward<Closure>(closure),
               verdict);
}
// docs: end

}  // namespace c10::openreg
