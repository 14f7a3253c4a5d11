// Streams: handles, order, waiting, failing, and blocking launches.
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <thread>

#include "check.h"

using test::Gate;
using test::launch;
using test::launch_failure;
using test::make_event;
using test::make_stream;

namespace {

unsigned long long id_of(orStream_t stream) {
  unsigned long long id = 0;
  CHECK_OK(orStreamGetId(stream, &id));
  return id;
}

uintptr_t to_handle(orStream_t stream) { return reinterpret_cast<uintptr_t>(stream); }

orStream_t default_stream(int device) {
  orStream_t stream = nullptr;
  CHECK_OK(orGetDefaultStream(&stream, device));
  return stream;
}

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

TEST(a_stream_reports_what_it_was_created_with) {
  CHECK_OK(orSetDevice(1));
  orStream_t stream = nullptr;
  CHECK_OK(orStreamCreateWithPriority(&stream, orStreamNonBlocking, -1));
  CHECK_OK(orSetDevice(0));
  int device = -1;
  int priority = 5;
  unsigned flags = 5;
  CHECK_OK(orStreamGetDevice(stream, &device));
  CHECK_OK(orStreamGetPriority(stream, &priority));
  CHECK_OK(orStreamGetFlags(stream, &flags));
  CHECK_EQUAL(device, 1);
  CHECK_EQUAL(priority, -1);
  CHECK_EQUAL(flags, orStreamNonBlocking);
}

TEST(priorities_are_clamped) {
  orStream_t stream = nullptr;
  int priority = 5;
  CHECK_OK(orStreamCreateWithPriority(&stream, 0, -7));
  CHECK_OK(orStreamGetPriority(stream, &priority));
  CHECK_EQUAL(priority, -1);
  CHECK_OK(orStreamCreateWithPriority(&stream, 0, 7));
  CHECK_OK(orStreamGetPriority(stream, &priority));
  CHECK_EQUAL(priority, 0);
}

TEST(bad_arguments_are_refused) {
  orStream_t stream = nullptr;
  int value = 0;
  CHECK_ERROR(orStreamCreate(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orStreamCreateWithPriority(&stream, 2, 0), orErrorInvalidValue);
  CHECK_ERROR(orGetDefaultStream(nullptr, 0), orErrorInvalidValue);
  CHECK_ERROR(orStreamGetDevice(nullptr, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orStreamGetPriority(nullptr, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orStreamGetFlags(nullptr, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orStreamGetId(nullptr, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orLaunchKernel(nullptr, nullptr, 0, nullptr), orErrorInvalidValue);
  const orKernel no_run{"none", nullptr, nullptr, nullptr};
  CHECK_ERROR(orLaunchKernel(&no_run, nullptr, 0, nullptr), orErrorInvalidValue);
  const orKernel kernel{"some", [](void*) { return orSuccess; }, nullptr, nullptr};
  CHECK_ERROR(orLaunchKernel(&kernel, nullptr, 1, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orLaunchHostFunc(nullptr, nullptr, &value), orErrorInvalidValue);
  CHECK(stream == nullptr);
}

TEST(stream_numbers_are_unique_and_never_used_again) {
  CHECK_EQUAL(id_of(default_stream(0)), 0u);
  CHECK_EQUAL(id_of(default_stream(1)), 1u);
  std::set<unsigned long long> ids = {0, 1};
  for (int i = 0; i < 20; ++i) {
    const orStream_t stream = make_stream(i % 2);
    CHECK(ids.insert(id_of(stream)).second);
    CHECK_OK(orStreamDestroy(stream));
  }
}

TEST(null_stands_for_the_default_stream_of_the_current_device) {
  for (int device : {0, 1}) {
    CHECK_OK(orSetDevice(device));
    CHECK_EQUAL(id_of(nullptr), static_cast<unsigned>(device));
    Gate gate;
    gate.hold(nullptr);
    CHECK_ERROR(orStreamQuery(default_stream(device)), orErrorNotReady);
    CHECK_OK(orStreamQuery(default_stream(1 - device)));
    gate.open();
    CHECK_OK(orStreamSynchronize(nullptr));
  }
}

TEST(a_default_stream_cannot_be_destroyed) {
  CHECK_ERROR(orStreamDestroy(default_stream(1)), orErrorNotPermitted);
  CHECK_ERROR(orStreamDestroy(nullptr), orErrorNotPermitted);
}

TEST(a_destroyed_stream_is_recognised_everywhere) {
  const orStream_t stream = make_stream();
  const orEvent_t event = make_event();
  CHECK_OK(launch(stream, "use", [] { return orSuccess; }));
  CHECK_OK(orStreamDestroy(stream));
  int value = 0;
  unsigned flags = 0;
  unsigned long long id = 0;
  orStreamCaptureStatus status;
  void* pinned = test::host_malloc(1);
  CHECK_ERROR(orStreamQuery(stream), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamSynchronize(stream), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamDestroy(stream), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamGetDevice(stream, &value), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamGetPriority(stream, &value), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamGetFlags(stream, &flags), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamGetId(stream, &id), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamIsCapturing(stream, &status), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamWaitEvent(stream, event, 0), orErrorInvalidResourceHandle);
  CHECK_ERROR(orEventRecord(event, stream), orErrorInvalidResourceHandle);
  CHECK_ERROR(orMemsetAsync(pinned, 0, 1, stream), orErrorInvalidResourceHandle);
  CHECK_ERROR(orMemcpyAsync(pinned, pinned, 1, orMemcpyDefault, stream),
              orErrorInvalidResourceHandle);
  CHECK_ERROR(launch(stream, "late", [] { return orSuccess; }), orErrorInvalidResourceHandle);
  CHECK_ERROR(orLaunchHostFunc(
                  stream, [](void*) {}, nullptr),
              orErrorInvalidResourceHandle);
}

TEST(validate_takes_any_number) {
  const orStream_t stream = make_stream();
  CHECK_OK(orStreamValidate(to_handle(stream)));
  CHECK_OK(orStreamValidate(to_handle(default_stream(0))));
  for (uintptr_t handle : {uintptr_t{0}, uintptr_t{1}, to_handle(stream) + 1, UINTPTR_MAX}) {
    CHECK_ERROR(orStreamValidate(handle), orErrorInvalidResourceHandle);
  }
  CHECK_OK(orStreamDestroy(stream));
  CHECK_ERROR(orStreamValidate(to_handle(stream)), orErrorInvalidResourceHandle);
}

TEST(destroying_a_stream_lets_its_work_finish) {
  const orStream_t stream = make_stream();
  Gate gate;
  gate.hold(stream);
  bool ran = false;
  CHECK_OK(launch(stream, "mark", [&] { return ran = true, orSuccess; }));
  CHECK_OK(orStreamDestroy(stream));
  gate.open();
  CHECK_OK(orDeviceSynchronize());
  CHECK(ran);
}

TEST(work_runs_in_order_and_streams_run_side_by_side) {
  const orStream_t first = make_stream();
  const orStream_t second = make_stream();
  Gate gate;
  gate.hold(first);
  std::string order;
  for (char letter : {'a', 'b', 'c'}) {
    CHECK_OK(launch(first, "append", [&order, letter] { return order += letter, orSuccess; }));
  }
  CHECK_OK(launch(second, "open", [&] { return gate.open(), orSuccess; }));
  CHECK_OK(orStreamSynchronize(first));
  CHECK_EQUAL(order, "abc");
}

TEST(query_tells_running_from_done) {
  const orStream_t stream = make_stream();
  CHECK_OK(orStreamQuery(stream));
  Gate gate;
  gate.hold(stream);
  gate.wait_until_reached();
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
  CHECK_EQUAL(orPeekAtLastError(), orSuccess);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orStreamQuery(stream));
}

TEST(synchronize_waits_for_what_was_submitted_before_it) {
  const orStream_t stream = make_stream();
  Gate first;
  Gate second;
  first.hold(stream);
  std::thread opener([&] {
    first.wait_until_reached();
    first.open();
  });
  CHECK_OK(orStreamSynchronize(stream));
  opener.join();
  second.hold(stream);
  second.wait_until_reached();
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
  second.open();
  CHECK_OK(orStreamSynchronize(stream));
}

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
  CHECK_OK(orLaunchKernel(&kernel, &closure, sizeof(closure), nullptr));
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
  const orKernel kernel{
      "aligned",
      [](void* closure) {
        const bool is_aligned =
            reinterpret_cast<uintptr_t>(closure) % OPENREG_CLOSURE_ALIGNMENT == 0;
        return is_aligned ? orSuccess : orErrorUnknown;
      },
      nullptr, nullptr};
  std::array<Aligned, 400> closure = {};
  for (size_t size : {size_t{1}, size_t{16}, size_t{100}, sizeof(closure)}) {
    CHECK_OK(orLaunchKernel(&kernel, &closure, size, stream));
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

TEST(after_a_failure_work_is_dropped_and_destroyed) {
  const orStream_t stream = make_stream();
  std::atomic<int> live{0};
  int ran = 0;
  Gate gate;
  gate.hold(stream);
  CHECK_OK(launch_failure(stream, orErrorInvalidValue, "first"));
  CHECK_OK(launch_failure(stream, orErrorNotSupported, "second"));
  CHECK_OK(launch(stream, "dropped",
                  [&ran, counted = Counted(live)] { return ++ran, orSuccess; }));
  CHECK_OK(orLaunchHostFunc(
      stream, [](void* count) { ++*static_cast<int*>(count); }, &ran));
  gate.open();
  CHECK_ERROR(orStreamSynchronize(stream), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "first");
  CHECK_EQUAL(ran, 0);
  CHECK_EQUAL(live.load(), 0);
}

TEST(a_failure_is_reported_once_and_then_the_stream_runs_again) {
  const orStream_t stream = make_stream();
  bool ran = false;
  CHECK_OK(launch_failure(stream, orErrorNotSupported));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorNotSupported);
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(launch(stream, "mark", [&] { return ran = true, orSuccess; }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(ran);
}

TEST(query_reports_a_failure_when_the_work_is_done) {
  const orStream_t stream = make_stream();
  CHECK_OK(launch_failure(stream, orErrorNotSupported));
  CHECK_OK(orFree(test::device_malloc(1)));
  CHECK_ERROR(orStreamQuery(stream), orErrorNotSupported);
  CHECK_OK(orStreamQuery(stream));
}

TEST(a_failure_stays_on_its_stream) {
  const orStream_t failing = make_stream();
  const orStream_t other = make_stream();
  CHECK_OK(launch_failure(failing, orErrorNotSupported));
  bool ran = false;
  CHECK_OK(launch(other, "mark", [&] { return ran = true, orSuccess; }));
  CHECK_OK(orStreamSynchronize(other));
  CHECK(ran);
  CHECK_ERROR(orStreamSynchronize(failing), orErrorNotSupported);
}

TEST(work_may_not_wait_for_its_own_stream_but_for_others) {
  const orStream_t stream = make_stream();
  const orStream_t other = make_stream();
  orError_t own = orSuccess;
  orError_t others = orErrorUnknown;
  CHECK_OK(launch(stream, "waits", [&] {
    own = orStreamSynchronize(stream);
    orError_t launched = launch(other, "inner", [] { return orSuccess; });
    others = launched == orSuccess ? orStreamSynchronize(other) : launched;
    return orSuccess;
  }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(own, orErrorNotPermitted);
  CHECK_EQUAL(others, orSuccess);
}

TEST(work_may_submit_to_its_own_stream_until_that_is_full) {
  const orStream_t stream = make_stream();
  int submitted = 0;
  int ran = 0;
  orError_t last = orSuccess;
  CHECK_OK(launch(stream, "submits", [&] {
    while (last == orSuccess && submitted < 1'000'000) {
      last = orLaunchHostFunc(
          stream, [](void* count) { ++*static_cast<int*>(count); }, &ran);
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
  const orError_t error = orLaunchKernel(&kernel, nullptr, 0, stream);
  CHECK_EQUAL(setrlimit(RLIMIT_AS, &limit), 0);
  CHECK_EQUAL(error, orErrorOperatingSystem);
  CHECK_OK(orLaunchKernel(&kernel, nullptr, 0, stream));
  CHECK_OK(orStreamSynchronize(stream));
}

TEST(a_blocking_launch_returns_the_kernels_error_and_clears_it) {
  use_blocking_launches();
  const orStream_t stream = make_stream();
  CHECK_ERROR(launch_failure(stream, orErrorNotSupported, "at once", 8), orErrorNotSupported);
  CHECK_CONTAINS(orGetLastErrorMessage(), "kernel 'failing' on stream 2 of device 0 failed");
  CHECK_EQUAL(orGetLastErrorTag(), 8);
  CHECK_OK(orStreamQuery(stream));
  bool ran = false;
  CHECK_OK(launch(stream, "mark", [&] { return ran = true, orSuccess; }));
  CHECK(ran);
}

TEST(a_blocking_launch_leaves_a_failed_closure_to_the_caller) {
  use_blocking_launches();
  std::atomic<int> live{0};
  const orKernel kernel{
      "owns", [](void* closure) { return (*static_cast<Counted*>(closure)->live > 1)
                                             ? orErrorNotSupported
                                             : orSuccess; },
      nullptr, [](void* closure) { static_cast<Counted*>(closure)->~Counted(); }};
  alignas(Counted) std::array<std::byte, sizeof(Counted)> storage;
  auto* counted = new (storage.data()) Counted(live);
  {
    const Counted second(live);
    CHECK_ERROR(orLaunchKernel(&kernel, counted, sizeof(Counted), nullptr), orErrorNotSupported);
    CHECK_EQUAL(live.load(), 2);
  }
  CHECK_OK(orLaunchKernel(&kernel, counted, sizeof(Counted), nullptr));
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
  CHECK_OK(orLaunchHostFunc(
      nullptr, [](void* count) { ++*static_cast<int*>(count); }, &ran));
  CHECK_EQUAL(ran, 1);
  CHECK_ERROR(orLaunchHostFunc(
                  nullptr, [](void*) { throw std::runtime_error("x"); }, nullptr),
              orErrorLaunchFailure);
}

TEST(a_blocking_launch_from_work_on_the_same_stream_does_not_wait) {
  use_blocking_launches();
  bool ran = false;
  CHECK_OK(launch(nullptr, "outer", [&] {
    return launch(nullptr, "inner", [&] { return ran = true, orSuccess; });
  }));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK(ran);
}
