// fork() and exit(): errors in a child, and the end of a process with pending work.
#include <atomic>
#include <thread>

#include "base/process.h"
#include "check.h"

using test::check_child;
using test::Gate;
using test::launch;
using test::make_event;
using test::make_stream;

namespace {

void check_everything_is_forked(void* memory, orStream_t stream, orEvent_t event) {
  void* pointer = nullptr;
  orStream_t made = nullptr;
  orEvent_t made_event = nullptr;
  int value = 0;
  unsigned flags = 0;
  unsigned long long id = 0;
  size_t size = 0;
  ptrdiff_t offset = 0;
  float elapsed_ms = 0;
  char byte = 0;
  orStreamCaptureStatus status;
  const orKernel kernel{"never", [](void*) { return orSuccess; }, nullptr, nullptr};
  for (const orError_t error : {orSetDevice(0),
                                orDeviceSynchronize(),
                                orDeviceSynchronizeIndex(1),
                                orDeviceSynchronizeAll(),
                                orMalloc(&pointer, 1),
                                orFree(memory),
                                orFree(nullptr),
                                orMemAddressReserve(&pointer, OPENREG_MAPPING_GRANULARITY),
                                orMemAddressFree(memory),
                                orMemMap(nullptr, OPENREG_MAPPING_GRANULARITY),
                                orMemUnmap(nullptr, OPENREG_MAPPING_GRANULARITY),
                                orMallocHost(&pointer, 1),
                                orFreeHost(nullptr),
                                orFreeHostUnused(nullptr),
                                orHostRegister(&byte, 1),
                                orMemGetInfo(&size, &size, 0),
                                orGetKernelOffset(&offset),
                                orDeviceGetAddressRange(&pointer, &size, 0),
                                orMemcpy(&byte, memory, 1, orMemcpyDefault),
                                orMemcpyAsync(&byte, memory, 1, orMemcpyDefault, stream),
                                orMemcpyWithStream(&byte, memory, 1, orMemcpyDefault, stream),
                                orMemset(memory, 0, 1),
                                orMemsetAsync(memory, 0, 1, stream),
                                orStreamCreate(&made),
                                orStreamCreateWithPriority(&made, 0, 0),
                                orStreamDestroy(stream),
                                orGetDefaultStream(&made, 0),
                                orStreamQuery(stream),
                                orStreamSynchronize(stream),
                                orStreamSynchronize(nullptr),
                                orStreamWaitEvent(stream, event, 0),
                                orLaunchKernel(&kernel, nullptr, 0, stream, 0),
                                orLaunchHostFunc(
                                    stream, [](void*) {}, nullptr),
                                orStreamGetDevice(stream, &value),
                                orStreamGetPriority(stream, &value),
                                orStreamGetFlags(stream, &flags),
                                orStreamGetId(stream, &id),
                                orStreamGetById(&stream, 0, 0),
                                orStreamValidate(reinterpret_cast<uintptr_t>(stream)),
                                orStreamHasEnded(&value, stream),
                                orStreamIsAlone(&value, stream),
                                orStreamIsCapturing(stream, &status),
                                orEventCreate(&made_event),
                                orEventCreateWithFlags(&made_event, 0),
                                orEventRecord(event, stream),
                                orEventQuery(event),
                                orEventIsComplete(&value, event),
                                orEventSynchronize(event),
                                orEventElapsedTime(&elapsed_ms, event, event),
                                orSetSchedule("lazy"),
                                orTraceStart(orActivityAll),
                                orTraceStop(),
                                orTraceConsume(nullptr, nullptr)}) {
    CHECK_ERROR(error, orErrorForked);
  }
  CHECK_CONTAINS(orGetLastErrorMessage(), "spawn");
}

void check_what_a_child_may_do(void* memory, orEvent_t event) {
  int value = -1;
  orDeviceProp properties;
  orPointerAttributes attributes;
  CHECK_OK(orIsForkedChild(&value));
  CHECK_EQUAL(value, 1);
  CHECK_OK(orGetDeviceCount(&value));
  CHECK_EQUAL(value, 2);
  CHECK_OK(orGetDevice(&value));
  CHECK_OK(orGetDeviceProperties(&properties, 1));
  CHECK_OK(orDeviceIsActive(0, &value));
  CHECK_EQUAL(value, 0);
  CHECK_OK(orPointerGetAttributes(&attributes, memory));
  CHECK_EQUAL(attributes.type, orMemoryTypeDevice);
  CHECK_OK(orEventDestroy(event));
  CHECK_OK(orCheckSettings());
}

// Runs a use of the library in many child processes, which end by exit() with that work pending,
// and checks that they end well.
void check_exits(int count, void (*use)()) {
  for (int i = 0; i < count; ++i) check_child(use);
}

Gate& leaked_gate() { return *new Gate; }

}  // namespace

TEST(a_child_of_a_used_process_gets_one_error) {
  char* memory = test::device_malloc(100);
  const orStream_t stream = make_stream();
  const orEvent_t event = make_event();
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orStreamSynchronize(stream));
  check_child([&] {
    check_everything_is_forked(memory, stream, event);
    check_what_a_child_may_do(memory, event);
  });
  CHECK_OK(orMemset(memory, 1, 100));
  CHECK_OK(orEventSynchronize(event));
}

TEST(a_child_forked_while_work_runs_ends_well) {
  Gate gate;
  gate.hold(nullptr);
  gate.wait_until_reached();
  check_child([] {
    CHECK_ERROR(orStreamQuery(nullptr), orErrorForked);
    check_child([] { CHECK_ERROR(orStreamQuery(nullptr), orErrorForked); });
  });
  gate.open();
  CHECK_OK(orStreamSynchronize(nullptr));
}

TEST(a_child_knows_pointers_whatever_its_parents_threads_did) {
  char* memory = test::device_malloc(100);
  std::atomic<bool> is_done{false};
  std::thread allocating([&] {
    while (!is_done.load()) {
      CHECK_OK(orFree(test::device_malloc(5000)));
      CHECK_OK(orFreeHost(test::host_malloc(50)));
    }
  });
  for (int i = 0; i < 50; ++i) {
    check_child([&] {
      orPointerAttributes attributes;
      CHECK_OK(orPointerGetAttributes(&attributes, memory));
      CHECK(attributes.allocationBase == memory);
      _exit(0);
    });
  }
  is_done.store(true);
  allocating.join();
}

// ThreadSanitizer finds the mistake: to unlock what the fork has not locked. It knows 63 locks that
// one thread holds.
TEST(a_fork_while_another_thread_makes_devices_unlocks_what_it_locked) {
  constexpr int device_count = 40;
  CHECK_EQUAL(setenv("OPENREG_DEVICE_COUNT", "40", 1), 0);
  check_exits(30, [] {
    std::atomic<bool> is_done{false};
    std::atomic<bool> may_end{false};  // a child has no thread that ended and was not joined
    std::thread making([&] {
      for (int device = 0; device < device_count; ++device) {
        CHECK_OK(orSetDevice(device));
        CHECK_OK(orFree(test::device_malloc(100)));
      }
      is_done.store(true);
      while (!may_end.load()) std::this_thread::yield();
    });
    while (!is_done.load()) check_child([] { _exit(0); });
    may_end.store(true);
    making.join();
  });
}

TEST(a_child_of_a_process_that_only_counted_works) {
  int count = 0;
  CHECK_OK(orGetDeviceCount(&count));
  CHECK_OK(orSetDevice(1));
  check_child([] {
    int is_forked = -1;
    CHECK_OK(orIsForkedChild(&is_forked));
    CHECK_EQUAL(is_forked, 0);
    char* memory = test::device_malloc(100);
    bool ran = false;
    CHECK_OK(launch(nullptr, "mark", [&] { return ran = true, orSuccess; }));
    CHECK_OK(orMemset(memory, 1, 100));
    CHECK(ran);
  });
  CHECK_OK(orFree(test::device_malloc(1)));
}

TEST(a_process_ends_with_live_objects) {
  check_exits(30, [] {
    test::device_malloc(1000);
    test::host_malloc(1000);
    make_event();
    for (int device : {0, 1}) {
      CHECK_OK(launch(make_stream(device), "work", [] { return orSuccess; }));
    }
  });
}

TEST(a_process_ends_with_queued_work) {
  check_exits(40, [] {
    for (int i = 0; i < 3; ++i) {
      const orStream_t stream = make_stream(i % 2);
      const std::string text = "a closure with a destructor";
      for (int j = 0; j < 1000; ++j) {
        CHECK_OK(
            launch(stream, "work", [text] { return text.empty() ? orErrorUnknown : orSuccess; }));
      }
    }
  });
}

TEST(a_process_ends_with_streams_that_wait_for_each_other) {
  check_exits(20, [] {
    const orStream_t first = make_stream(0);
    const orStream_t second = make_stream(1);
    const orEvent_t event = make_event();
    for (int i = 0; i < 100; ++i) {
      CHECK_OK(orEventRecord(event, first));
      CHECK_OK(orStreamWaitEvent(second, event, 0));
      CHECK_OK(orEventRecord(event, second));
      CHECK_OK(orStreamWaitEvent(first, event, 0));
      CHECK_OK(launch(first, "work", [] { return orSuccess; }));
    }
  });
}

TEST(a_process_ends_with_idle_workers) {
  check_exits(20, [] {
    for (int i = 0; i < 4; ++i) CHECK_OK(launch(make_stream(), "work", [] { return orSuccess; }));
    CHECK_OK(orDeviceSynchronize());
  });
}

TEST(a_process_ends_with_failed_streams) {
  check_exits(5, [] {
    CHECK_OK(test::launch_failure(nullptr, orErrorNotSupported));
    CHECK_OK(launch(nullptr, "dropped", [] { return orSuccess; }));
  });
}

TEST(a_process_ends_with_work_that_never_ends) {
  check_exits(2, [] {
    const orStream_t blocked = make_stream();
    const orStream_t waiting = make_stream();
    const orEvent_t event = make_event();
    Gate& gate = leaked_gate();
    gate.hold(blocked);
    CHECK_OK(orEventRecord(event, blocked));
    CHECK_OK(orStreamWaitEvent(waiting, event, 0));
    CHECK_OK(launch(waiting, "never", [] { return orSuccess; }));
    gate.wait_until_reached();
  });
}

TEST(exit_waits_for_the_command_that_runs_and_no_other) {
  check_exits(3, [] {
    static std::atomic<bool> has_first_begun{false};
    static std::atomic<bool> has_first_ended{false};
    static std::atomic<bool> has_second_begun{false};
    // Runs after the library's own handler, which is registered later.
    std::atexit([] {
      if (!has_first_ended || has_second_begun) _exit(3);
    });
    CHECK_OK(launch(nullptr, "first", [] {
      has_first_begun = true;
      while (!openreg::is_exiting()) std::this_thread::yield();
      has_first_ended = true;
      return orSuccess;
    }));
    CHECK_OK(launch(nullptr, "second", [] { return has_second_begun = true, orSuccess; }));
    while (!has_first_begun) std::this_thread::yield();
  });
}

TEST(calls_during_exit_neither_crash_nor_hang) {
  check_exits(2, [] {
    static orStream_t stream = nullptr;
    static char* memory = nullptr;
    static orEvent_t event = nullptr;
    std::atexit([] {
      CHECK_OK(launch(stream, "dropped", [] { return orSuccess; }));
      CHECK_ERROR(orStreamSynchronize(stream), orErrorNotPermitted);
      CHECK_ERROR(orEventSynchronize(event), orErrorNotPermitted);
      CHECK_ERROR(orDeviceSynchronize(), orErrorNotPermitted);
      CHECK_ERROR(orMemset(memory, 1, 1), orErrorNotPermitted);
      CHECK_OK(orEventRecord(event, stream));
      CHECK_OK(orFree(memory));
      CHECK_OK(orStreamDestroy(stream));
      stream = make_stream();
      CHECK_OK(launch(stream, "dropped", [] { return orSuccess; }));
    });
    stream = make_stream();
    memory = test::device_malloc(1);
    event = make_event();
    Gate& gate = leaked_gate();
    gate.hold(stream);
    CHECK_OK(orEventRecord(event, stream));
    gate.wait_until_reached();
  });
}

TEST(exit_releases_threads_that_wait) {
  check_exits(2, [] {
    static std::thread waiting;
    static std::thread submitting;
    std::atexit([] {
      waiting.join();
      submitting.join();
    });
    static const orStream_t blocked = make_stream();
    static Gate& gate = leaked_gate();
    gate.hold(blocked);
    gate.wait_until_reached();
    waiting = std::thread([] { CHECK_ERROR(orStreamSynchronize(blocked), orErrorNotPermitted); });
    submitting = std::thread([] {
      for (int i = 0; i < 20'000; ++i) {
        CHECK_OK(launch(blocked, "fills the queue", [] { return orSuccess; }));
      }
    });
  });
}

TEST(work_may_call_exit) {
  check_exits(3, [] {
    CHECK_OK(launch(nullptr, "exits", []() -> orError_t { std::exit(0); }));
    for (;;) pause();
  });
}

TEST(children_use_ranges_and_schedules_whatever_other_threads_did) {
  constexpr int child_count = 150;
  constexpr unsigned time_limit_s = 20;
  CHECK_OK(orTraceStart(orActivityAll));
  std::atomic<bool> is_over{false};
  std::vector<std::thread> users;
  for (int i = 0; i < 3; ++i) {
    users.emplace_back([&is_over, i] {
      for (int count = 0; !is_over; ++count) {
        uint64_t id = 0;
        char schedule[OPENREG_SCHEDULE_SIZE];
        CHECK_OK(orRangePush(std::to_string(count % 1000).c_str(), nullptr));
        CHECK_OK(orMark("a mark of a thread of the parent"));
        CHECK_OK(orRangeStart("started", &id));
        CHECK_OK(orGetSchedule(schedule, sizeof(schedule)));
        CHECK_OK(orRangeEnd(id));
        CHECK_OK(orRangePop(nullptr));
        if (i == 0 && count % 100 == 0) CHECK_OK(orTraceConsume(nullptr, nullptr));
      }
    });
  }
  for (int i = 0; i < child_count; ++i) {
    test::check_child([] {
      alarm(time_limit_s);  // a child that hangs is killed
      uint64_t id = 0;
      char schedule[OPENREG_SCHEDULE_SIZE];
      CHECK_OK(orRangePush("a child's", nullptr));
      CHECK_OK(orMark("a child's"));
      CHECK_OK(orRangeStart("a child's", &id));
      CHECK_OK(orGetSchedule(schedule, sizeof(schedule)));
      CHECK_OK(orRangeEnd(id));
      CHECK_OK(orRangePop(nullptr));
      _exit(0);
    });
  }
  is_over = true;
  for (std::thread& user : users) user.join();
}
