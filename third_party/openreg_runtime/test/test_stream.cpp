// Streams: handles, order, waiting and failing.
#include <memory>
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
  CHECK_ERROR(orLaunchKernel(nullptr, nullptr, 0, nullptr, 0), orErrorInvalidValue);
  const orKernel no_run{"none", nullptr, nullptr, nullptr};
  CHECK_ERROR(orLaunchKernel(&no_run, nullptr, 0, nullptr, 0), orErrorInvalidValue);
  const orKernel kernel{"some", [](void*) { return orSuccess; }, nullptr, nullptr};
  CHECK_ERROR(orLaunchKernel(&kernel, nullptr, 1, nullptr, 0), orErrorInvalidValue);
  CHECK_ERROR(orLaunchHostFunc(nullptr, nullptr, &value), orErrorInvalidValue);
  CHECK(stream == nullptr);
}

TEST(stream_numbers_are_unique_on_their_device_and_never_used_again) {
  for (int device : {0, 1}) {
    CHECK_EQUAL(id_of(default_stream(device)), 0u);
    for (unsigned long long id = 1; id <= 20; ++id) {
      const orStream_t stream = make_stream(device);
      CHECK_EQUAL(id_of(stream), id);
      CHECK_OK(orStreamDestroy(stream));
    }
  }
}

TEST(a_stream_is_found_by_its_device_and_number) {
  const orStream_t first = make_stream(0);
  const orStream_t second = make_stream(0);
  const orStream_t other = make_stream(1);
  for (orStream_t stream : {default_stream(0), first, second, default_stream(1), other}) {
    int device = -1;
    CHECK_OK(orStreamGetDevice(stream, &device));
    orStream_t found = nullptr;
    CHECK_OK(orStreamGetById(&found, device, id_of(stream)));
    CHECK(found == stream);
  }
  const unsigned long long id = id_of(first);
  CHECK_OK(orStreamDestroy(first));
  orStream_t found = nullptr;
  CHECK_ERROR(orStreamGetById(&found, 0, id), orErrorInvalidResourceHandle);
  CHECK_CONTAINS(orGetLastErrorMessage(), "device 0 has no live stream 1");
  CHECK_ERROR(orStreamGetById(&found, 1, 7), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamGetById(&found, 2, 0), orErrorInvalidDevice);
  CHECK_ERROR(orStreamGetById(nullptr, 0, 0), orErrorInvalidValue);
  CHECK(found == nullptr);
  CHECK_OK(orStreamGetById(&found, 0, id_of(second)));
}

TEST(null_stands_for_the_default_stream_of_the_current_device) {
  for (int device : {0, 1}) {
    CHECK_OK(orSetDevice(device));
    CHECK_EQUAL(id_of(nullptr), 0u);
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

TEST(a_destroyed_stream_is_recognized_everywhere) {
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
  CHECK_ERROR(orLaunchHostFunc(stream, [](void*) {}, nullptr), orErrorInvalidResourceHandle);
  CHECK_OK(orEventDestroy(event));
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

TEST(a_stream_has_ended_when_it_is_destroyed_and_its_work_is_done) {
  const orStream_t stream = make_stream();
  int has_ended = 1;
  CHECK_OK(orStreamHasEnded(&has_ended, stream));
  CHECK_EQUAL(has_ended, 0);
  Gate gate;
  gate.hold(stream);
  const orEvent_t done = make_event();
  CHECK_OK(orEventRecord(done, stream));
  CHECK_OK(orStreamDestroy(stream));
  has_ended = 1;
  CHECK_OK(orStreamHasEnded(&has_ended, stream));
  CHECK_EQUAL(has_ended, 0);
  gate.open();
  CHECK_OK(orDeviceSynchronize());
  CHECK_OK(orStreamHasEnded(&has_ended, stream));
  CHECK_EQUAL(has_ended, 1);
  CHECK_ERROR(orStreamHasEnded(nullptr, stream), orErrorInvalidValue);
  CHECK_ERROR(orStreamHasEnded(&has_ended, nullptr), orErrorInvalidValue);
  CHECK_OK(orEventDestroy(done));
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

TEST(try_synchronize_waits_for_nothing) {
  const orStream_t stream = make_stream();
  CHECK_OK(orStreamTrySynchronize(stream));
  Gate gate;
  gate.hold(stream);
  gate.wait_until_reached();
  CHECK_ERROR(orStreamTrySynchronize(stream), orErrorNotReady);
  CHECK_EQUAL(orPeekAtLastError(), orSuccess);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orStreamTrySynchronize(stream));
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

namespace {

// How often an idle function was called.
struct Calls {
  void add() {
    const std::lock_guard lock(mutex);
    ++count;
    changed.notify_all();
  }

  int wait_for(int wanted) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return count >= wanted; });
    return count;
  }

  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
};

Calls idle_calls;

}  // namespace

TEST(an_idle_worker_calls_its_function_once_until_there_is_work) {
  const orStream_t stream = make_stream();
  CHECK_ERROR(orSetIdleFunction([] {}), orErrorNotPermitted);
  CHECK_OK(launch(stream, "set", [] { return orSetIdleFunction([] { idle_calls.add(); }); }));
  CHECK_EQUAL(idle_calls.wait_for(1), 1);
  CHECK_OK(launch(stream, "work", [] { return orSuccess; }));
  CHECK_EQUAL(idle_calls.wait_for(2), 2);
  CHECK_OK(launch(stream, "unset", [] { return orSetIdleFunction(nullptr); }));
  CHECK_OK(orStreamSynchronize(stream));
}

TEST(after_a_failure_work_is_dropped_and_destroyed) {
  const orStream_t stream = make_stream();
  const auto token = std::make_shared<int>(0);
  int ran = 0;
  Gate gate;
  gate.hold(stream);
  CHECK_OK(launch_failure(stream, orErrorInvalidValue, "first"));
  CHECK_OK(launch_failure(stream, orErrorNotSupported, "second"));
  CHECK_OK(launch(stream, "dropped", [&ran, token] { return ++ran, orSuccess; }));
  CHECK_OK(orLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &ran));
  gate.open();
  CHECK_ERROR(orStreamSynchronize(stream), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "first");
  CHECK_EQUAL(ran, 0);
  CHECK_EQUAL(token.use_count(), 1L);
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

TEST(query_and_try_synchronize_report_a_failure_when_the_work_is_done) {
  const orStream_t stream = make_stream();
  for (const auto& call : {orStreamQuery, orStreamTrySynchronize}) {
    CHECK_OK(launch_failure(stream, orErrorNotSupported));
    CHECK_OK(orFree(test::device_malloc(1)));
    CHECK_ERROR(call(stream), orErrorNotSupported);
    CHECK_OK(call(stream));
  }
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

TEST(a_stream_is_alone_while_no_other_has_work) {
  const orStream_t stream = make_stream(0);
  const orStream_t other = make_stream(1);
  int is_alone = -1;
  CHECK_OK(orStreamIsAlone(&is_alone, stream));
  CHECK_EQUAL(is_alone, 1);
  Gate gate;
  gate.hold(other);
  CHECK_OK(orStreamIsAlone(&is_alone, stream));
  CHECK_EQUAL(is_alone, 0);
  CHECK_OK(orStreamIsAlone(&is_alone, other));
  CHECK_EQUAL(is_alone, 1);
  gate.open();
  CHECK_OK(orStreamSynchronize(other));
  CHECK_OK(orStreamIsAlone(&is_alone, stream));
  CHECK_EQUAL(is_alone, 1);
  CHECK_ERROR(orStreamIsAlone(nullptr, stream), orErrorInvalidValue);
}

namespace {

int checks = 0;

// Ends a wait at its third question.
int ends_at_the_third() { return ++checks == 3 ? 1 : 0; }

}  // namespace

TEST(wait_check_ends_waits_early_and_the_work_goes_on) {
  orStream_t stream = nullptr;
  CHECK_OK(orStreamCreate(&stream));
  orEvent_t event = nullptr;
  CHECK_OK(orEventCreate(&event));
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orSetWaitCheck(&ends_at_the_third));
  for (int wait = 0; wait < 3; ++wait) {
    checks = 0;
    CHECK_ERROR(wait == 0   ? orStreamSynchronize(stream)
                : wait == 1 ? orEventSynchronize(event)
                            : orDeviceSynchronize(),
                orErrorNotReady);
    CHECK_EQUAL(checks, 3);
  }
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orSetWaitCheck(nullptr));
  CHECK_OK(orEventDestroy(event));
  CHECK_OK(orStreamDestroy(stream));
}

TEST(wait_check_does_not_end_a_copy) {
  void* device = nullptr;
  CHECK_OK(orMalloc(&device, 4));
  int value = 1;
  CHECK_OK(orMemcpy(device, &value, 4, orMemcpyHostToDevice));
  Gate gate;
  gate.hold(nullptr);
  checks = 0;
  CHECK_OK(orSetWaitCheck([] { return 1; }));
  std::thread opener([&] {
    gate.wait_until_reached();
    gate.open();
  });
  CHECK_OK(orMemcpy(&value, device, 4, orMemcpyDeviceToHost));
  opener.join();
  CHECK_OK(orSetWaitCheck(nullptr));
  CHECK_EQUAL(checks, 0);
  CHECK_OK(orFree(device));
}
