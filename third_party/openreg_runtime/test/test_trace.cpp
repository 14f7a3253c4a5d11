// Activity records: what is recorded, when, and what the records say.
#include <algorithm>
#include <array>
#include <set>
#include <thread>

#include "check.h"

using test::Gate;
using test::launch;
using test::make_stream;

namespace {

std::vector<orActivityRecord> consume() {
  std::vector<orActivityRecord> records;
  CHECK_OK(orTraceConsume(
      [](const orActivityRecord* record, void* records) {
        static_cast<std::vector<orActivityRecord>*>(records)->push_back(*record);
      },
      &records));
  return records;
}

std::vector<orActivityRecord> of_kind(const std::vector<orActivityRecord>& records,
                                      orActivityKind kind) {
  std::vector<orActivityRecord> found;
  std::copy_if(records.begin(), records.end(), std::back_inserter(found),
               [kind](const orActivityRecord& record) { return record.kind == kind; });
  return found;
}

orActivityRecord only(const std::vector<orActivityRecord>& records, orActivityKind kind) {
  const std::vector<orActivityRecord> found = of_kind(records, kind);
  CHECK_EQUAL(found.size(), size_t{1});
  return found.front();
}

// Records all kinds while `work` runs.
template <typename Work>
std::vector<orActivityRecord> trace(Work work) {
  CHECK_OK(orTraceStart(orActivityAll));
  work();
  CHECK_OK(orTraceStop());
  return consume();
}

}  // namespace

TEST(bad_arguments_are_refused) {
  uint64_t id = 0;
  CHECK_ERROR(orTraceStart(0), orErrorInvalidValue);
  CHECK_ERROR(orTraceStart(orActivityAll + 1), orErrorInvalidValue);
  CHECK_ERROR(orTraceIsOn(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orTraceGetTime(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orTracePopExternalId(&id), orErrorInvalidValue);
  CHECK_OK(orTracePushExternalId(1));
  CHECK_ERROR(orTracePopExternalId(nullptr), orErrorInvalidValue);
  CHECK_OK(orTracePopExternalId(&id));
  CHECK_EQUAL(id, 1u);
}

TEST(nothing_is_recorded_while_tracing_is_off) {
  CHECK_OK(launch(nullptr, "unseen", [] { return orSuccess; }));
  CHECK_OK(orDeviceSynchronize());
  CHECK(consume().empty());
}

TEST(a_kernel_leaves_a_record_linked_to_its_submission) {
  const orStream_t stream = make_stream(1);
  const auto records = trace([&] {
    CHECK_OK(launch(stream, "aten::add", [] { return orSuccess; }));
    CHECK_OK(orStreamSynchronize(stream));
  });
  const orActivityRecord kernel = only(records, orActivityKernel);
  const orActivityRecord runtime = only(records, orActivityRuntime);
  const orActivityRecord wait = only(records, orActivitySynchronize);
  CHECK_EQUAL(std::string(kernel.name), "aten::add");
  CHECK_EQUAL(kernel.device, 1);
  CHECK_EQUAL(kernel.stream_id, 1u);
  CHECK(kernel.correlation_id >= 1);
  CHECK_EQUAL(kernel.has_external_id, 0);
  CHECK_EQUAL(kernel.bytes, 0u);
  CHECK_EQUAL(kernel.address, 0u);
  CHECK_EQUAL(kernel.memcpy_kind, -1);
  CHECK_EQUAL(kernel.peer_device, -1);
  CHECK(kernel.submit_ns <= kernel.start_ns && kernel.start_ns <= kernel.end_ns);
  CHECK_EQUAL(std::string(runtime.name), "orLaunchKernel");
  CHECK_EQUAL(runtime.correlation_id, kernel.correlation_id);
  CHECK_EQUAL(runtime.device, 1);
  CHECK_EQUAL(runtime.stream_id, 1u);
  CHECK_EQUAL(runtime.thread_id, static_cast<int>(getpid()));
  CHECK(runtime.thread_id != kernel.thread_id);
  CHECK_EQUAL(std::string(wait.name), "orStreamSynchronize");
  CHECK(wait.end_ns >= kernel.end_ns);
}

TEST(copies_and_fills_leave_records_with_their_bytes) {
  CHECK_OK(orSetDevice(1));
  char* on_one = test::device_malloc(1000);
  const orStream_t stream = make_stream(0);
  char* on_zero = test::device_malloc(1000);
  const auto records = trace([&] {
    Gate gate;
    gate.hold(stream);
    CHECK_OK(orMemcpyAsync(on_zero, on_one, 1000, orMemcpyDeviceToDevice, stream));
    CHECK_OK(orMemsetAsync(on_zero, 1, 500, stream));
    gate.open();
    CHECK_OK(orStreamSynchronize(stream));
  });
  const orActivityRecord copy = only(records, orActivityMemcpy);
  CHECK_EQUAL(std::string(copy.name), "orMemcpyAsync");
  CHECK_EQUAL(copy.bytes, 1000u);
  CHECK_EQUAL(copy.memcpy_kind, static_cast<int>(orMemcpyDeviceToDevice));
  CHECK_EQUAL(copy.device, 0);
  CHECK_EQUAL(copy.peer_device, 1);
  const orActivityRecord fill = only(records, orActivityMemset);
  CHECK_EQUAL(std::string(fill.name), "orMemsetAsync");
  CHECK_EQUAL(fill.bytes, 500u);
  CHECK_EQUAL(fill.memcpy_kind, -1);
  CHECK_EQUAL(std::string(only(records, orActivityHostFunc).name), "orLaunchHostFunc");
}

TEST(a_copy_that_runs_on_the_host_thread_leaves_a_record) {
  char* memory = test::device_malloc(10);
  char byte = 0;
  CHECK_OK(orDeviceSynchronize());
  const auto records = trace([&] { CHECK_OK(orMemcpy(&byte, memory, 1, orMemcpyDeviceToHost)); });
  const orActivityRecord copy = only(records, orActivityMemcpy);
  const orActivityRecord runtime = only(records, orActivityRuntime);
  CHECK_EQUAL(copy.bytes, 1u);
  CHECK_EQUAL(copy.memcpy_kind, static_cast<int>(orMemcpyDeviceToHost));
  CHECK_EQUAL(copy.stream_id, 0u);
  CHECK_EQUAL(copy.thread_id, static_cast<int>(getpid()));
  CHECK_EQUAL(std::string(runtime.name), "orMemcpy");
  CHECK_EQUAL(runtime.correlation_id, copy.correlation_id);
}

TEST(a_copy_that_waits_for_the_stream_leaves_a_record_of_the_wait) {
  char* memory = test::device_malloc(10);
  const auto records = trace([&] { CHECK_OK(orMemset(memory, 1, 10)); });
  const orActivityRecord fill = only(records, orActivityMemset);
  const orActivityRecord wait = only(records, orActivitySynchronize);
  CHECK_EQUAL(std::string(wait.name), "orMemset");
  CHECK(wait.end_ns >= fill.end_ns);
  CHECK_EQUAL(wait.thread_id, static_cast<int>(getpid()));
}

namespace {

struct CopyOfSeven {
  void describe(orActivityRecord* record) const {
    record->kind = orActivityMemcpy;
    record->bytes = 7;
    record->memcpy_kind = orMemcpyHostToDevice;
    record->peer_device = 1;
  }
};

const orKernel described_kernel = {"described", [](void*) { return orSuccess; }, nullptr, nullptr,
                                   [](const void* closure, orActivityRecord* record) {
                                     static_cast<const CopyOfSeven*>(closure)->describe(record);
                                   }};

void check_described_kernel() {
  const auto records = trace([] {
    CopyOfSeven closure;
    CHECK_OK(orLaunchKernel(&described_kernel, &closure, sizeof(closure), nullptr, 0));
    CHECK_OK(orStreamSynchronize(nullptr));
  });
  const orActivityRecord copy = only(records, orActivityMemcpy);
  CHECK_EQUAL(std::string(copy.name), "described");
  CHECK_EQUAL(copy.bytes, 7u);
  CHECK_EQUAL(copy.memcpy_kind, static_cast<int>(orMemcpyHostToDevice));
  CHECK_EQUAL(copy.peer_device, 1);
  CHECK_EQUAL(copy.correlation_id, only(records, orActivityRuntime).correlation_id);
}

}  // namespace

TEST(a_kernel_may_describe_itself) { check_described_kernel(); }

TEST(a_kernel_may_describe_itself_in_blocking_mode) {
  setenv("OPENREG_LAUNCH_BLOCKING", "1", 1);
  check_described_kernel();
}

TEST(an_untraced_kernel_is_not_asked_to_describe_itself) {
  static bool is_asked = false;
  static const orKernel kernel = {"unseen", [](void*) { return orSuccess; }, nullptr, nullptr,
                                  [](const void*, orActivityRecord*) { is_asked = true; }};
  CHECK_OK(orLaunchKernel(&kernel, nullptr, 0, nullptr, 0));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK(!is_asked);
}

TEST(work_of_the_host_leaves_the_records_of_submitted_work) {
  const orStream_t stream = make_stream(1);
  orActivityRecord work = {};
  work.kind = orActivityKernel;
  work.name = "aten::nonzero";
  work.memcpy_kind = -1;
  work.peer_device = -1;
  work.start_ns = 10;
  work.end_ns = 30;
  CHECK_OK(orTraceRecordWork(stream, "by hand", &work));  // off: no record
  const auto records = trace([&] {
    int is_on = 0;
    CHECK_OK(orTraceIsOn(&is_on));
    CHECK_EQUAL(is_on, 1);
    CHECK_OK(orTracePushExternalId(5));
    CHECK_OK(orTraceRecordWork(stream, "by hand", &work));
    uint64_t id = 0;
    CHECK_OK(orTracePopExternalId(&id));
  });
  const orActivityRecord kernel = only(records, orActivityKernel);
  const orActivityRecord runtime = only(records, orActivityRuntime);
  CHECK_EQUAL(std::string(kernel.name), "aten::nonzero");
  CHECK_EQUAL(std::string(runtime.name), "by hand");
  CHECK_EQUAL(kernel.correlation_id, runtime.correlation_id);
  for (const orActivityRecord& record : records) {
    CHECK_EQUAL(record.device, 1);
    CHECK_EQUAL(record.stream_id, 1u);
    CHECK_EQUAL(record.thread_id, static_cast<int>(getpid()));
    CHECK_EQUAL(record.has_external_id, 1);
    CHECK_EQUAL(record.external_id, 5u);
    CHECK_EQUAL(record.start_ns, 10);
    CHECK_EQUAL(record.end_ns, 30);
  }
  int is_on = 1;
  CHECK_OK(orTraceIsOn(&is_on));
  CHECK_EQUAL(is_on, 0);
}

TEST(records_of_the_host_s_work_are_checked) {
  orActivityRecord work = {};
  work.kind = orActivityMemcpy;
  work.name = "copy";
  CHECK_OK(orTraceStart(orActivityAll));
  CHECK_OK(orTraceRecordWork(nullptr, "by hand", &work));
  CHECK_ERROR(orTraceRecordWork(nullptr, nullptr, &work), orErrorInvalidValue);
  CHECK_ERROR(orTraceRecordWork(nullptr, "by hand", nullptr), orErrorInvalidValue);
  work.end_ns = -1;
  CHECK_ERROR(orTraceRecordWork(nullptr, "by hand", &work), orErrorInvalidValue);
  work.end_ns = 0;
  work.kind = orActivityRuntime;
  CHECK_ERROR(orTraceRecordWork(nullptr, "by hand", &work), orErrorInvalidValue);
  work.kind = static_cast<orActivityKind>(0);
  CHECK_ERROR(orTraceRecordWork(nullptr, "by hand", &work), orErrorInvalidValue);
  work.kind = orActivityMemcpy;
  work.name = nullptr;
  CHECK_ERROR(orTraceRecordWork(nullptr, "by hand", &work), orErrorInvalidValue);
  CHECK_OK(orTraceStop());
}

TEST(allocations_and_frees_leave_records) {
  void* memory = nullptr;
  void* pinned = nullptr;
  const auto records = of_kind(trace([&] {
                                 CHECK_OK(orMalloc(&memory, 700));
                                 CHECK_OK(orFree(memory));
                                 CHECK_OK(orMallocHost(&pinned, 800));
                                 CHECK_OK(orFreeHost(pinned));
                               }),
                               orActivityMemory);
  CHECK_EQUAL(records.size(), size_t{4});
  const std::array<const char*, 4> names = {"orMalloc", "orFree", "orMallocHost", "orFreeHost"};
  for (size_t i = 0; i < 4; ++i) {
    CHECK_EQUAL(std::string(records[i].name), names[i]);
    CHECK_EQUAL(records[i].bytes, i < 2 ? 700u : 800u);
    CHECK_EQUAL(records[i].address, reinterpret_cast<uintptr_t>(i < 2 ? memory : pinned));
    CHECK_EQUAL(records[i].device, 0);
    CHECK_EQUAL(records[i].stream_id, UINT64_MAX);
  }
}

TEST(every_kind_of_wait_leaves_a_record) {
  const orEvent_t event = test::make_event();
  CHECK_OK(orEventRecord(event, nullptr));
  const auto records = of_kind(trace([&] {
                                 CHECK_OK(orStreamSynchronize(nullptr));
                                 CHECK_OK(orEventSynchronize(event));
                                 CHECK_OK(orDeviceSynchronize());
                                 CHECK_OK(orDeviceSynchronizeIndex(0));
                                 CHECK_OK(orDeviceSynchronizeAll());
                               }),
                               orActivitySynchronize);
  CHECK_EQUAL(records.size(), size_t{5});
  const std::array<const char*, 5> names = {"orStreamSynchronize", "orEventSynchronize",
                                            "orDeviceSynchronize", "orDeviceSynchronizeIndex",
                                            "orDeviceSynchronizeAll"};
  for (size_t i = 0; i < 5; ++i) {
    CHECK_EQUAL(std::string(records[i].name), names[i]);
    CHECK_EQUAL(records[i].stream_id, i < 2 ? 0u : UINT64_MAX);
  }
  CHECK_OK(orEventDestroy(event));
}

TEST(only_the_kinds_asked_for_are_recorded) {
  CHECK_OK(orTraceStart(orActivityKernel));
  CHECK_OK(launch(nullptr, "kernel", [] { return orSuccess; }));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK_OK(orTraceStart(orActivityRuntime | orActivityMemory));
  CHECK_OK(launch(nullptr, "kernel", [] { return orSuccess; }));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK_OK(orTraceStop());
  const auto records = consume();
  CHECK_EQUAL(records.size(), size_t{2});
  CHECK_EQUAL(records[0].kind, orActivityKernel);
  CHECK_EQUAL(records[1].kind, orActivityRuntime);
}

TEST(the_innermost_external_id_is_stamped_on_submission) {
  uint64_t popped = 5;
  const auto records = of_kind(
      trace([&] {
        CHECK_OK(orTracePushExternalId(7));
        CHECK_OK(orTracePushExternalId(0));
        CHECK_OK(launch(nullptr, "a", [] { return orSuccess; }));
        CHECK_OK(orTracePopExternalId(&popped));
        CHECK_OK(launch(nullptr, "b", [] { return orSuccess; }));
        std::thread([] { CHECK_OK(launch(nullptr, "c", [] { return orSuccess; })); }).join();
        CHECK_OK(orStreamSynchronize(nullptr));
      }),
      orActivityKernel);
  CHECK_EQUAL(popped, 0u);
  CHECK_EQUAL(records.size(), size_t{3});
  CHECK_EQUAL(records[0].has_external_id, 1);
  CHECK_EQUAL(records[0].external_id, 0u);
  CHECK_EQUAL(records[1].has_external_id, 1);
  CHECK_EQUAL(records[1].external_id, 7u);
  CHECK_EQUAL(records[2].has_external_id, 0);
  CHECK(records[0].correlation_id < records[1].correlation_id);
}

TEST(work_not_retired_when_tracing_stops_leaves_no_record) {
  Gate gate;
  CHECK_OK(orTraceStart(orActivityKernel));
  gate.hold(nullptr);
  CHECK_OK(launch(nullptr, "late", [] { return orSuccess; }));
  CHECK_OK(orTraceStop());
  // Not even if tracing is on again when it retires.
  CHECK_OK(orTraceStart(orActivityKernel));
  CHECK_OK(launch(nullptr, "seen", [] { return orSuccess; }));
  gate.open();
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK_OK(orTraceStop());
  CHECK_EQUAL(std::string(only(consume(), orActivityKernel).name), "seen");
}

TEST(dropped_work_leaves_no_record) {
  const auto records = trace([] {
    CHECK_OK(test::launch_failure(nullptr, orErrorNotSupported));
    CHECK_OK(launch(nullptr, "dropped", [] { return orSuccess; }));
    CHECK_ERROR(orStreamSynchronize(nullptr), orErrorNotSupported);
  });
  CHECK_EQUAL(std::string(only(records, orActivityKernel).name), "failing");
}

TEST(records_stay_until_consumed_and_are_ordered_by_end) {
  CHECK_OK(orTraceStart(orActivityKernel));
  std::vector<orStream_t> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(make_stream(i % 2));
  for (int i = 0; i < 400; ++i) {
    CHECK_OK(launch(streams[static_cast<size_t>(i) % 4], "k", [] { return orSuccess; }));
  }
  CHECK_OK(orDeviceSynchronizeAll());
  CHECK_OK(orTraceStop());
  const auto records = consume();
  CHECK_EQUAL(records.size(), size_t{400});
  CHECK(std::is_sorted(records.begin(), records.end(),
                       [](const auto& a, const auto& b) { return a.end_ns < b.end_ns; }));
  std::set<uint64_t> ids;
  for (const orActivityRecord& record : records) ids.insert(record.correlation_id);
  CHECK_EQUAL(ids.size(), size_t{400});
  CHECK(consume().empty());
}

TEST(records_of_ended_threads_are_kept_and_their_buffers_reused) {
  CHECK_OK(orTraceStart(orActivityMemory));
  for (int i = 0; i < 20; ++i) {
    std::thread([] { CHECK_OK(orFree(test::device_malloc(1))); }).join();
  }
  CHECK_OK(orTraceStop());
  CHECK_EQUAL(consume().size(), size_t{40});
}

TEST(consuming_without_a_function_forgets) {
  trace([] {});
  CHECK_OK(orTraceStart(orActivityMemory));
  test::device_malloc(1);
  CHECK_OK(orTraceStop());
  CHECK_OK(orTraceConsume(nullptr, nullptr));
  CHECK(consume().empty());
}

TEST(consumers_may_call_the_library) {
  CHECK_OK(orTraceStart(orActivityMemory));
  test::device_malloc(1);
  CHECK_OK(orTraceConsume(
      [](const orActivityRecord*, void*) {
        test::device_malloc(1);
        CHECK_OK(orTraceConsume(nullptr, nullptr));
      },
      nullptr));
  CHECK_OK(orTraceStop());
}

TEST(the_clock_is_monotonic) {
  int64_t before_ns = 0;
  int64_t after_ns = 0;
  CHECK_OK(orTraceGetTime(&before_ns));
  CHECK_OK(orTraceGetTime(&after_ns));
  CHECK(before_ns > 0 && before_ns <= after_ns);
}
