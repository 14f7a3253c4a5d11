/* Callables: launches of C++ functions and lambdas with their arguments. Needs C++17; in C, this
 * header declares nothing.
 */
#ifndef OPENREG_CALLABLE_H
#define OPENREG_CALLABLE_H

#include <openreg/stream.h>

#ifdef __cplusplus

#include <exception>
#include <functional>
#include <new>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace openreg_callable {

/* What a launch encloses: the callable and its arguments, by value. */
template <typename Function, typename... Arguments>
struct Closure {
  Function function;
  std::tuple<Arguments...> arguments;

  /* Const, as a closure in a graph runs again. */
  static orError_t run(void* closure) {
    const Closure& self = *static_cast<const Closure*>(closure);
    try {
      std::apply(self.function, self.arguments);
      return orSuccess;
    } catch (const std::exception& error) {
      orSetKernelError(error.what(), 0);
    } catch (...) {
      orSetKernelError("an exception that is not a std::exception", 0);
    }
    return orErrorLaunchFailure;
  }

  static void move(void* to, void* from) {
    Closure* source = static_cast<Closure*>(from);
    new (to) Closure(std::move(*source));
    source->~Closure();
  }

  static void destroy(void* closure) { static_cast<Closure*>(closure)->~Closure(); }
};

}  // namespace openreg_callable

/* Enqueues the call `function(arguments...)`, as orLaunchKernel in stream.h enqueues a kernel. The
 * callable and the arguments are copied or moved into the launch, as by std::thread, and are const
 * in the call, as a graph repeats it; pass references by std::ref. Errors and traces name the
 * kernel by the callable's type, as the compiler spells it (typeid).
 * Errors: as orLaunchKernel. An exception that leaves the call is the kernel's error,
 * orErrorLaunchFailure with the exception's text. If the launch itself fails, the callable and the
 * arguments are destroyed. */
template <typename Function, typename... Arguments,
          typename = std::enable_if_t<std::is_invocable_v<const std::decay_t<Function>&,
                                                          const std::decay_t<Arguments>&...>>>
[[nodiscard]] orError_t orLaunchKernel(orStream_t stream, Function&& function,
                                       Arguments&&... arguments) {
  using Closure = openreg_callable::Closure<std::decay_t<Function>, std::decay_t<Arguments>...>;
  static_assert(std::is_nothrow_move_constructible_v<Closure>,
                "a closure moves into the queue and must not throw there");
  static_assert(alignof(Closure) <= OPENREG_CLOSURE_ALIGNMENT, "the queue aligns closures less");
  static const orKernel kernel = {
      typeid(Function).name(),
      &Closure::run,
      std::is_trivially_copyable_v<Closure> ? nullptr : &Closure::move,
      std::is_trivially_destructible_v<Closure> ? nullptr : &Closure::destroy,
      nullptr,
      nullptr,
  };
  alignas(Closure) unsigned char storage[sizeof(Closure)];
  Closure* closure = new (storage)
      Closure{std::forward<Function>(function), {std::forward<Arguments>(arguments)...}};
  const orError_t error = orLaunchKernel(&kernel, closure, sizeof(Closure), stream, 0);
  if (error != orSuccess) closure->~Closure();
  return error;
}

#endif /* __cplusplus */

#endif
