// Launching: closures, full queues, several submitting threads, and blocking launches.
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"

using test::Gate;
using test::launch;
using test::launch_failure;
using test::make_stream;

namespace {

// Counts its live objects.
struct Counted {
  explicit Counted(std::atomic<int>& live) : live(&live) { ++*this->live; }
  Counted(const Counted& other) : live(other.live) { ++*live; }
  Counted(Counted&& other) noexcept : live(other.live) { ++*live; }
  ~Counted() { --*live; }
  std::atomic<int>* live;
};

void use_blocking_launches() { CHECK_EQUAL(setenv("OPENREG_LAUNCH_BLOCKING", "1", 1), 0); }

}  // namespace

TEST(closures_of_every_size_are_moved_and_destroyed) {
  const orStream_t stream = make_stream();
  std::atomic<int> live{0};
  std::atomic<int> sum{0};
  Gate gate;
  gate.hold(stream);
  const auto launch_sized = [&]<size_t size>(std::array<char, size> bytes) {
    bytes.front() = 1;
    bytes.back() = 1;
    CHECK_OK(launch(stream, "sized", [bytes, counted = Counted(live), &sum] {
      return sum += bytes.front() + bytes.back(), orSuccess;
    }));
  };
  launch_sized(std::array<char, 1>());
  launch_sized(std::array<char, 200>());
  launch_sized(std::array<char, 4096 - 32>());
  launch_sized(std::array<char, 5000>());
  launch_sized(std::array<char, 100'000>());
  CHECK_EQUAL(live.load(), 5);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(live.load(), 0);
  CHECK_EQUAL(sum.load(), 10);
}

TEST(a_callable_is_launched_with_copies_of_its_arguments) {
  const orStream_t stream = make_stream();
  std::atomic<int> live{0};
  std::atomic<int> sum{0};
  Gate gate;
  gate.hold(stream);
  int term = 40;
  {
    const Counted counted(live);
    CHECK_OK(orLaunchKernel(
        stream, [](std::atomic<int>& result, int a, int b, const Counted&) { result = a + b; },
        std::ref(sum), term, 2, counted));
  }
  term = 0;
  CHECK_EQUAL(live.load(), 1);
  CHECK_EQUAL(sum.load(), 0);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(sum.load(), 42);
  CHECK_EQUAL(live.load(), 0);
}

namespace {

void throw_on_purpose(int code) { throw std::runtime_error("code " + std::to_string(code)); }

}  // namespace

TEST(an_exception_of_a_callable_is_the_error_of_its_kernel) {
  const orStream_t stream = make_stream();
  CHECK_OK(orLaunchKernel(stream, throw_on_purpose, 7));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorLaunchFailure);
  CHECK_CONTAINS(orGetLastErrorMessage(), "code 7");
  CHECK_OK(orLaunchKernel(stream, [] { throw 7; }));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorLaunchFailure);
  CHECK_CONTAINS(orGetLastErrorMessage(), "not a std::exception");
}

TEST(a_skipped_launch_keeps_its_place_and_is_not_called) {
  const orStream_t stream = make_stream();
  std::atomic<int> live{0};
  static std::atomic<int> calls;
  calls = 0;
  const orKernel kernel{"skipped", [](void*) { return ++calls, orSuccess; },
                        [](void* to, void* from) {
                          new (to) Counted(std::move(*static_cast<Counted*>(from)));
                          static_cast<Counted*>(from)->~Counted();
                        },
                        [](void* closure) { static_cast<Counted*>(closure)->~Counted(); }};
  const auto launch_with = [&](unsigned flags) {
    alignas(Counted) std::array<std::byte, sizeof(Counted)> closure;
    CHECK_OK(orLaunchKernel(&kernel, new (closure.data()) Counted(live), sizeof(Counted), stream,
                            flags));
  };
  Gate gate;
  gate.hold(stream);
  launch_with(orLaunchSkip);
  CHECK_EQUAL(live.load(), 1);
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(live.load(), 0);
  CHECK_EQUAL(calls.load(), 0);
  launch_with(orLaunchDefault);
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(calls.load(), 1);

  CHECK_OK(orStreamBeginCapture(stream, orStreamCaptureModeGlobal));
  launch_with(orLaunchSkip);
  launch_with(orLaunchDefault);
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  orGraphExec_t exec = nullptr;
  CHECK_OK(orGraphInstantiate(&exec, graph, 0));
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(calls.load(), 2);

  CHECK_ERROR(orLaunchKernel(&kernel, nullptr, 0, stream, 6), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "got 6");
}

TEST(a_skipped_launch_is_skipped_where_launches_wait) {
  use_blocking_launches();
  const orStream_t stream = make_stream();
  const orKernel kernel{"fails", [](void*) { return orErrorLaunchFailure; }, nullptr, nullptr};
  CHECK_OK(orLaunchKernel(&kernel, nullptr, 0, stream, orLaunchSkip));
  CHECK_ERROR(orLaunchKernel(&kernel, nullptr, 0, stream, orLaunchDefault), orErrorLaunchFailure);
}

TEST(a_callable_that_is_not_launched_is_destroyed) {
  const orStream_t stream = make_stream();
  CHECK_OK(orStreamDestroy(stream));
  std::atomic<int> live{0};
  CHECK_ERROR(orLaunchKernel(stream, [counted = Counted(live)] {}), orErrorInvalidResourceHandle);
  CHECK_EQUAL(live.load(), 0);
}

TEST(closures_without_functions_are_copied_as_bytes) {
  struct Closure {
    int* target;
    int value;
  };
  const orKernel kernel{"plain",
                        [](void* closure) {
                          const auto& plain = *static_cast<Closure*>(closure);
                          *plain.target = plain.value;
                          return orSuccess;
                        },
                        nullptr, nullptr};
  int target = 0;
  Closure closure{&target, 7};
  CHECK_OK(orLaunchKernel(&kernel, &closure, sizeof(closure), nullptr, 0));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK_EQUAL(target, 7);
}

TEST(a_refused_closure_stays_the_callers) {
  const orStream_t stream = make_stream();
  CHECK_OK(orStreamDestroy(stream));
  std::atomic<int> live{0};
  std::array<char, 10'000> large = {};
  CHECK_ERROR(launch(stream, "small", [counted = Counted(live)] { return orSuccess; }),
              orErrorInvalidResourceHandle);
  CHECK_ERROR(launch(stream, "large", [large, counted = Counted(live)] { return orSuccess; }),
              orErrorInvalidResourceHandle);
  CHECK_EQUAL(live.load(), 0);
}

TEST(closures_are_aligned) {
  const orStream_t stream = make_stream();
  struct alignas(OPENREG_CLOSURE_ALIGNMENT) Aligned {
    std::array<char, 16> bytes;
  };
  const orKernel kernel{"aligned",
                        [](void* closure) {
                          const bool is_aligned =
                              reinterpret_cast<uintptr_t>(closure) % OPENREG_CLOSURE_ALIGNMENT == 0;
                          return is_aligned ? orSuccess : orErrorUnknown;
                        },
                        nullptr, nullptr};
  std::array<Aligned, 400> closure = {};
  for (size_t size : {size_t{1}, size_t{16}, size_t{100}, sizeof(closure)}) {
    CHECK_OK(orLaunchKernel(&kernel, &closure, size, stream, 0));
  }
  CHECK_OK(orStreamSynchronize(stream));
}

TEST(a_closure_is_destroyed_before_its_work_counts_as_done) {
  const orStream_t stream = make_stream();
  struct OnDestroy {
    OnDestroy(orStream_t stream, orError_t* seen) : stream(stream), seen(seen) {}
    OnDestroy(OnDestroy&& other) noexcept : stream(other.stream), seen(other.seen) {
      other.seen = nullptr;
    }
    ~OnDestroy() {
      if (seen != nullptr) *seen = orStreamQuery(stream);
    }
    orStream_t stream;
    orError_t* seen;
  };
  orError_t seen = orSuccess;
  auto callable = [on_destroy = OnDestroy(stream, &seen)] { return orSuccess; };
  CHECK_OK(launch(stream, "destroyed", std::move(callable)));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(seen, orErrorNotReady);
}

TEST(work_may_submit_to_its_own_stream_until_that_is_full) {
  const orStream_t stream = make_stream();
  int submitted = 0;
  int ran = 0;
  orError_t last = orSuccess;
  CHECK_OK(launch(stream, "submits", [&] {
    while (last == orSuccess && submitted < 1'000'000) {
      last = orLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &ran);
      submitted += last == orSuccess;
    }
    return orSuccess;
  }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(last, orErrorNotPermitted);
  CHECK_EQUAL(ran, submitted);
}

TEST(a_full_queue_makes_the_host_wait) {
  const orStream_t stream = make_stream();
  Gate gate;
  gate.hold(stream);
  constexpr int count = 20'000;  // several times what the queue holds
  int ran = 0;
  std::atomic<int> submitted{0};
  std::thread submitter([&] {
    for (int i = 0; i < count; ++i) {
      CHECK_OK(launch(stream, "count", [&ran] { return ++ran, orSuccess; }));
      ++submitted;
    }
  });
  gate.wait_until_reached();
  CHECK(submitted.load() < count);
  gate.open();
  submitter.join();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(ran, count);
}

TEST(several_threads_may_submit_to_one_stream) {
  const orStream_t stream = make_stream();
  constexpr int thread_count = 4;
  constexpr int launches = 5'000;
  std::array<int, thread_count> last = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 1; i <= launches; ++i) {
        CHECK_OK(launch(stream, "in order", [&last, t, i] {
          return std::exchange(last[t], i) == i - 1 ? orSuccess : orErrorUnknown;
        }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_OK(orStreamSynchronize(stream));
  for (int value : last) CHECK_EQUAL(value, launches);
}

TEST(a_queue_that_cannot_be_had_is_an_operating_system_error) {
  const orStream_t stream = make_stream();
  test::device_malloc(1);
  rlimit limit;
  CHECK_EQUAL(getrlimit(RLIMIT_AS, &limit), 0);
  const rlimit none{1 << 20, limit.rlim_max};
  static const orKernel kernel{"never", [](void*) { return orSuccess; }, nullptr, nullptr};
  CHECK_EQUAL(setrlimit(RLIMIT_AS, &none), 0);
  const orError_t error = orLaunchKernel(&kernel, nullptr, 0, stream, 0);
  CHECK_EQUAL(setrlimit(RLIMIT_AS, &limit), 0);
  CHECK_EQUAL(error, orErrorOperatingSystem);
  CHECK_OK(orLaunchKernel(&kernel, nullptr, 0, stream, 0));
  CHECK_OK(orStreamSynchronize(stream));
}

TEST(a_blocking_launch_returns_the_kernels_error_and_clears_it) {
  use_blocking_launches();
  const orStream_t stream = make_stream();
  CHECK_ERROR(launch_failure(stream, orErrorNotSupported, "at once", 8), orErrorNotSupported);
  CHECK_CONTAINS(orGetLastErrorMessage(), "kernel 'failing' on stream 1 of device 0 failed");
  CHECK_EQUAL(orGetLastErrorTag(), 8);
  CHECK_OK(orStreamQuery(stream));
  bool ran = false;
  CHECK_OK(launch(stream, "mark", [&] { return ran = true, orSuccess; }));
  CHECK(ran);
}

TEST(a_blocking_launch_leaves_a_failed_closure_to_the_caller) {
  use_blocking_launches();
  std::atomic<int> live{0};
  const orKernel kernel{"owns",
                        [](void* closure) {
                          return (*static_cast<Counted*>(closure)->live > 1) ? orErrorNotSupported
                                                                             : orSuccess;
                        },
                        nullptr, [](void* closure) { static_cast<Counted*>(closure)->~Counted(); }};
  alignas(Counted) std::array<std::byte, sizeof(Counted)> storage;
  auto* counted = new (storage.data()) Counted(live);
  {
    const Counted second(live);
    CHECK_ERROR(orLaunchKernel(&kernel, counted, sizeof(Counted), nullptr, 0), orErrorNotSupported);
    CHECK_EQUAL(live.load(), 2);
  }
  CHECK_OK(orLaunchKernel(&kernel, counted, sizeof(Counted), nullptr, 0));
  CHECK_EQUAL(live.load(), 0);
}

TEST(blocking_launches_cover_copies_fills_and_host_functions) {
  use_blocking_launches();
  char* memory = test::device_malloc(10);
  char* pinned = test::host_malloc(10);
  int ran = 0;
  CHECK_OK(orMemsetAsync(memory, 'b', 10, nullptr));
  CHECK_EQUAL(test::kernel_address(memory)[9], 'b');
  CHECK_OK(orMemcpyAsync(pinned, memory, 10, orMemcpyDefault, nullptr));
  CHECK_EQUAL(pinned[9], 'b');
  CHECK_OK(orLaunchHostFunc(nullptr, [](void* count) { ++*static_cast<int*>(count); }, &ran));
  CHECK_EQUAL(ran, 1);
  CHECK_ERROR(orLaunchHostFunc(
                  nullptr, [](void*) { throw std::runtime_error("x"); }, nullptr),
              orErrorLaunchFailure);
}

TEST(a_blocking_launch_from_work_on_the_same_stream_does_not_wait) {
  use_blocking_launches();
  bool ran = false;
  CHECK_OK(launch(nullptr, "outer",
                  [&] { return launch(nullptr, "inner", [&] { return ran = true, orSuccess; }); }));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK(ran);
}

TEST(a_kernel_without_a_name_is_refused) {
  const orKernel kernel{nullptr, [](void*) { return orSuccess; }, nullptr, nullptr};
  CHECK_ERROR(orLaunchKernel(&kernel, nullptr, 0, nullptr, 0), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "expected a kernel with a name");
}

TEST(a_move_that_throws_fails_its_launch_and_the_stream_goes_on) {
  struct Large {
    char bytes[OPENREG_MAX_INLINE_CLOSURE_SIZE + 1];
  };
  const orKernel kernel{"throws", [](void*) -> orError_t { std::abort(); },
                        [](void*, void*) { throw std::runtime_error("cannot move"); },
                        [](void*) { std::abort(); }};
  const orKernel throws_number{"throws", kernel.run, [](void*, void*) { throw 1; }, kernel.destroy};
  const orStream_t stream = test::make_stream();
  Large closure = {};
  const auto check_launches = [&](orError_t error) {
    for (const size_t size : {sizeof(closure), size_t{8}}) {
      CHECK_ERROR(orLaunchKernel(&kernel, &closure, size, stream, 0), error);
      CHECK_CONTAINS(orGetLastErrorMessage(), "cannot move");
      CHECK_ERROR(orLaunchKernel(&throws_number, &closure, size, stream, 0), error);
    }
  };
  for (const char* schedule : {"free", "lazy", "eager", "7"}) {
    CHECK_OK(orSetSchedule(schedule));
    check_launches(orErrorUnknown);
    bool ran = false;
    CHECK_OK(test::launch(stream, "runs", [&ran] { return ran = true, orSuccess; }));
    CHECK_OK(orStreamSynchronize(stream));
    CHECK(ran);
  }
  CHECK_OK(orStreamBeginCapture(stream, orStreamCaptureModeRelaxed));
  check_launches(orErrorUnknown);
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  size_t count = 1;
  CHECK_OK(orGraphGetNodeCount(graph, &count));
  CHECK_EQUAL(count, 0u);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orStreamDestroy(stream));
}

TEST(a_closure_above_the_limit_is_refused) {
  const orKernel kernel{"large", [](void*) { return orSuccess; }, nullptr, nullptr};
  char closure[64] = {};
  for (const size_t size : {SIZE_MAX, SIZE_MAX - 64, OPENREG_MAX_CLOSURE_SIZE + 1}) {
    CHECK_ERROR(orLaunchKernel(&kernel, closure, size, nullptr, 0), orErrorInvalidValue);
    CHECK_CONTAINS(orGetLastErrorMessage(), "expected a closure of at most 1073741824 bytes, got");
  }
  const orStream_t stream = test::make_stream();
  CHECK_OK(orStreamBeginCapture(stream, orStreamCaptureModeRelaxed));
  CHECK_ERROR(orLaunchKernel(&kernel, closure, SIZE_MAX, stream, 0), orErrorInvalidValue);
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orStreamDestroy(stream));
}

namespace {

// How many times work on a stream can submit to its own stream, where it never waits: the error
// says that another thread would.
template <typename Launch>
int count_until_full(orStream_t stream, int most, Launch launch_one) {
  int count = 0;
  orError_t error = orSuccess;
  CHECK_OK(launch(stream, "submits", [&] {
    while (count < most && (error = launch_one()) == orSuccess) ++count;
    return orSuccess;
  }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orStreamSynchronize(stream));  // what the work submitted
  CHECK_EQUAL(error, count < most ? orErrorNotPermitted : orSuccess);
  return count;
}

}  // namespace

TEST(a_queue_holds_so_many_bytes_of_large_closures) {
  setenv("OPENREG_QUEUE_MEMORY", "1MiB", 1);
  const orStream_t stream = make_stream();
  static std::array<char, 100'000> closure{};
  const orKernel kernel{"large", [](void*) { return orSuccess; }, nullptr, nullptr};
  const auto launch_one = [&] {
    return orLaunchKernel(&kernel, closure.data(), closure.size(), stream, 0);
  };
  CHECK_EQUAL(count_until_full(stream, 50, launch_one), 10);
  CHECK_EQUAL(count_until_full(stream, 50, launch_one), 10);
}

TEST(a_queue_counts_what_closures_own) {
  setenv("OPENREG_QUEUE_MEMORY", "64KiB", 1);
  const orStream_t stream = make_stream();
  const orKernel kernel{"owns",  [](void*) { return orSuccess; },           nullptr, nullptr,
                        nullptr, [](const void*) -> size_t { return 1000; }};
  char closure = 0;
  CHECK_EQUAL(count_until_full(stream, 200,
                               [&] { return orLaunchKernel(&kernel, &closure, 1, stream, 0); }),
              65);
}

TEST(a_closure_above_the_limit_of_a_queue_goes_alone) {
  setenv("OPENREG_QUEUE_MEMORY", "4KiB", 1);
  const orStream_t stream = make_stream();
  static std::array<char, 10'000> closure{};
  const orKernel kernel{"large", [](void*) { return orSuccess; }, nullptr, nullptr};
  CHECK_EQUAL(
      count_until_full(
          stream, 5,
          [&] { return orLaunchKernel(&kernel, closure.data(), closure.size(), stream, 0); }),
      1);
}

TEST(a_queue_without_a_limit_holds_any_closures) {
  setenv("OPENREG_QUEUE_MEMORY", "0", 1);
  const orStream_t stream = make_stream();
  static std::array<char, 1'000'000> closure{};
  const orKernel kernel{"large", [](void*) { return orSuccess; }, nullptr, nullptr};
  CHECK_EQUAL(
      count_until_full(
          stream, 200,
          [&] { return orLaunchKernel(&kernel, closure.data(), closure.size(), stream, 0); }),
      200);
}

TEST(a_thread_waits_until_a_queue_has_memory_again) {
  setenv("OPENREG_QUEUE_MEMORY", "1MiB", 1);
  const orStream_t stream = make_stream();
  static std::array<char, 100'000> closure{};
  const orKernel kernel{"large", [](void*) { return orSuccess; }, nullptr, nullptr};
  for (int i = 0; i < 500; ++i) {
    CHECK_OK(orLaunchKernel(&kernel, closure.data(), closure.size(), stream, 0));
  }
  CHECK_OK(orStreamSynchronize(stream));
}
