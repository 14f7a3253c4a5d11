// Events: records, waits, times, and how they carry failures.
#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using test::Gate;
using test::launch;
using test::launch_failure;
using test::make_event;
using test::make_stream;

namespace {

// The four pairs of streams, {same device, two devices} x {default stream, other stream}.
struct Pair {
  orStream_t first;
  orStream_t second;
};

std::array<Pair, 4> pairs() {
  std::array<Pair, 4> pairs;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const int second_device = i % 2 == 0 ? 0 : 1;
    pairs[i].second = make_stream(second_device);
    if (i < 2) {
      pairs[i].first = make_stream(0);
    } else {
      CHECK_OK(orGetDefaultStream(&pairs[i].first, 0));
    }
  }
  return pairs;
}

// How often the threads of this process gave up their processors to wait.
long count_sleeps() {
  long sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      long count = 0;
      if (std::sscanf(line.c_str(), "voluntary_ctxt_switches: %ld", &count) == 1) sum += count;
    }
  }
  return sum;
}

}  // namespace

TEST(bad_arguments_are_refused) {
  orEvent_t event = nullptr;
  float elapsed_ms = 0;
  CHECK_ERROR(orEventCreate(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orEventCreateWithFlags(&event, 4), orErrorInvalidValue);
  CHECK(event == nullptr);
  event = make_event();
  CHECK_ERROR(orStreamWaitEvent(nullptr, event, 1), orErrorInvalidValue);
  CHECK_ERROR(orEventElapsedTime(nullptr, event, event), orErrorInvalidValue);
  CHECK_ERROR(orEventRecord(nullptr, nullptr), orErrorInvalidResourceHandle);
  CHECK_ERROR(orEventQuery(nullptr), orErrorInvalidResourceHandle);
  CHECK_ERROR(orEventSynchronize(nullptr), orErrorInvalidResourceHandle);
  CHECK_ERROR(orStreamWaitEvent(nullptr, nullptr, 0), orErrorInvalidResourceHandle);
  CHECK_ERROR(orEventElapsedTime(&elapsed_ms, event, nullptr), orErrorInvalidResourceHandle);
  CHECK_OK(orEventDestroy(nullptr));
  CHECK_OK(orEventDestroy(event));
}

TEST(an_event_never_recorded_holds_nothing) {
  const orEvent_t event = make_event();
  const orStream_t stream = make_stream();
  CHECK_OK(orEventQuery(event));
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  CHECK_OK(orStreamQuery(stream));
  CHECK_OK(orEventDestroy(event));
}

TEST(a_record_completes_when_the_stream_reaches_it) {
  const orEvent_t event = make_event();
  const orStream_t stream = make_stream();
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_ERROR(orEventQuery(event), orErrorNotReady);
  CHECK_EQUAL(orPeekAtLastError(), orSuccess);
  gate.open();
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orEventQuery(event));
  CHECK_OK(orStreamQuery(stream));
  CHECK_OK(orEventDestroy(event));
}

TEST(a_stream_waits_for_a_record_on_another) {
  for (const Pair& pair : pairs()) {
    const orEvent_t event = make_event();
    Gate gate;
    int value = 0;
    gate.hold(pair.first);
    CHECK_OK(launch(pair.first, "set", [&] { return value = 1, orSuccess; }));
    CHECK_OK(orEventRecord(event, pair.first));
    CHECK_OK(orStreamWaitEvent(pair.second, event, 0));
    CHECK_OK(launch(pair.second, "double", [&] { return value *= 2, orSuccess; }));
    CHECK_OK(orEventDestroy(event));
    CHECK_ERROR(orStreamQuery(pair.second), orErrorNotReady);
    gate.open();
    CHECK_OK(orStreamSynchronize(pair.second));
    CHECK_EQUAL(value, 2);
    CHECK_OK(orStreamSynchronize(pair.first));
  }
}

TEST(a_wait_refers_to_the_latest_record_at_the_time_of_the_call) {
  const orEvent_t event = make_event();
  const orStream_t recorded = make_stream();
  const orStream_t waiting = make_stream();
  Gate first;
  Gate second;
  first.hold(recorded);
  CHECK_OK(orEventRecord(event, recorded));
  CHECK_OK(orStreamWaitEvent(waiting, event, 0));
  second.hold(recorded);
  CHECK_OK(orEventRecord(event, recorded));
  CHECK_ERROR(orStreamQuery(waiting), orErrorNotReady);
  first.open();
  CHECK_OK(orStreamSynchronize(waiting));
  CHECK_ERROR(orEventQuery(event), orErrorNotReady);
  second.open();
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orEventDestroy(event));
}

TEST(event_rerecord_waits_for_the_last_record) {
  const orEvent_t event = make_event();
  const orStream_t done = make_stream(0);
  const orStream_t held = make_stream(1);
  CHECK_OK(orEventRecord(event, done));
  CHECK_OK(orEventSynchronize(event));
  Gate gate;
  gate.hold(held);
  CHECK_OK(orEventRecord(event, held));
  CHECK_ERROR(orEventQuery(event), orErrorNotReady);
  std::thread opener([&] {
    gate.wait_until_reached();
    gate.open();
  });
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orStreamQuery(held));
  opener.join();
  CHECK_OK(orEventDestroy(event));
}

TEST(waiting_for_a_completed_record_submits_nothing) {
  const orEvent_t event = make_event();
  const orStream_t stream = make_stream();
  CHECK_OK(orEventRecord(event, nullptr));
  CHECK_OK(orEventSynchronize(event));
  Gate gate;
  gate.hold(stream);
  gate.wait_until_reached();
  for (int i = 0; i < 100'000; ++i) CHECK_OK(orStreamWaitEvent(stream, event, 0));
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orEventDestroy(event));
}

TEST(a_stream_may_wait_for_its_own_record) {
  const orEvent_t event = make_event();
  const orStream_t stream = make_stream();
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orEventDestroy(event));
}

TEST(elapsed_time_is_positive_forwards_and_negative_backwards) {
  const orEvent_t start = make_event();
  const orEvent_t end = make_event();
  int64_t before_ns = 0;
  int64_t after_ns = 0;
  float elapsed_ms = 0;
  CHECK_OK(orTraceGetTime(&before_ns));
  CHECK_OK(orEventRecord(start, nullptr));
  CHECK_OK(launch(nullptr, "takes 2 ms", [] {
    int64_t begin_ns = 0;
    int64_t now_ns = 0;
    CHECK_OK(orTraceGetTime(&begin_ns));
    do {
      CHECK_OK(orTraceGetTime(&now_ns));
    } while (now_ns - begin_ns < 2'000'000);
    return orSuccess;
  }));
  CHECK_OK(orEventRecord(end, nullptr));
  CHECK_OK(orEventSynchronize(end));
  CHECK_OK(orTraceGetTime(&after_ns));
  CHECK_OK(orEventElapsedTime(&elapsed_ms, start, end));
  CHECK(elapsed_ms >= 2.0F);
  CHECK(elapsed_ms <= static_cast<float>(after_ns - before_ns) * 1e-6F);
  float backwards_ms = 0;
  CHECK_OK(orEventElapsedTime(&backwards_ms, end, start));
  CHECK_EQUAL(backwards_ms, -elapsed_ms);
  CHECK_OK(orEventElapsedTime(&elapsed_ms, start, start));
  CHECK_EQUAL(elapsed_ms, 0.0F);
  CHECK_OK(orEventDestroy(start));
  CHECK_OK(orEventDestroy(end));
}

TEST(elapsed_time_needs_two_completed_records_with_timing) {
  const orEvent_t recorded = make_event();
  const orEvent_t other = make_event();
  orEvent_t untimed = nullptr;
  float elapsed_ms = 5;
  CHECK_OK(orEventCreateWithFlags(&untimed, orEventDisableTiming | orEventBlockingSync));
  CHECK_OK(orEventRecord(recorded, nullptr));
  CHECK_OK(orEventRecord(untimed, nullptr));
  CHECK_OK(orEventSynchronize(untimed));
  CHECK_ERROR(orEventElapsedTime(&elapsed_ms, recorded, other), orErrorInvalidResourceHandle);
  CHECK_CONTAINS(orGetLastErrorMessage(), "the end event was never recorded");
  CHECK_ERROR(orEventElapsedTime(&elapsed_ms, untimed, recorded), orErrorInvalidResourceHandle);
  CHECK_CONTAINS(orGetLastErrorMessage(), "the start event was created without timing");
  Gate gate;
  gate.hold(nullptr);
  CHECK_OK(orEventRecord(other, nullptr));
  CHECK_ERROR(orEventElapsedTime(&elapsed_ms, recorded, other), orErrorNotReady);
  CHECK_EQUAL(elapsed_ms, 5.0F);
  gate.open();
  CHECK_OK(orEventSynchronize(other));
  CHECK_OK(orEventElapsedTime(&elapsed_ms, recorded, other));
  for (orEvent_t event : {recorded, other, untimed}) CHECK_OK(orEventDestroy(event));
}

TEST(elapsed_time_needs_events_of_one_device) {
  const orEvent_t start = make_event();
  const orEvent_t end = make_event();
  float elapsed_ms = 0;
  orStream_t streams[2];
  for (int device : {0, 1}) CHECK_OK(orGetDefaultStream(&streams[device], device));
  CHECK_OK(orEventRecord(start, streams[0]));
  CHECK_OK(orEventRecord(end, streams[1]));
  CHECK_OK(orEventSynchronize(start));
  CHECK_OK(orEventSynchronize(end));
  CHECK_ERROR(orEventElapsedTime(&elapsed_ms, start, end), orErrorInvalidResourceHandle);
  CHECK_CONTAINS(orGetLastErrorMessage(), "two events of one device");
  for (orEvent_t event : {start, end}) CHECK_OK(orEventDestroy(event));
}

TEST(a_record_after_a_failure_completes_with_it) {
  const orEvent_t before = make_event();
  const orEvent_t after = make_event();
  const orStream_t stream = make_stream();
  float elapsed_ms = 0;
  CHECK_OK(orEventRecord(before, stream));
  CHECK_OK(launch_failure(stream, orErrorNotSupported, "carried", 5));
  CHECK_OK(orEventRecord(after, stream));
  CHECK_OK(orEventSynchronize(before));
  CHECK_ERROR(orEventSynchronize(after), orErrorNotSupported);
  CHECK_CONTAINS(orGetLastErrorMessage(), "carried");
  CHECK_EQUAL(orGetLastErrorTag(), 5);
  CHECK_ERROR(orEventQuery(after), orErrorNotSupported);
  CHECK_ERROR(orEventElapsedTime(&elapsed_ms, before, after), orErrorNotSupported);
  // Looking at the event does not clear the stream, nor the other way round.
  CHECK_ERROR(orStreamSynchronize(stream), orErrorNotSupported);
  CHECK_ERROR(orEventQuery(after), orErrorNotSupported);
  CHECK_OK(orEventRecord(after, stream));
  CHECK_OK(orEventSynchronize(after));
  CHECK_OK(orEventDestroy(before));
  CHECK_OK(orEventDestroy(after));
}

TEST(a_stream_that_waits_for_a_failed_record_inherits_the_failure) {
  for (bool is_complete_at_the_call : {false, true}) {
    for (const Pair& pair : pairs()) {
      const orEvent_t event = make_event();
      Gate gate;
      if (!is_complete_at_the_call) gate.hold(pair.first);
      CHECK_OK(launch_failure(pair.first, orErrorInvalidValue, "inherited"));
      CHECK_OK(orEventRecord(event, pair.first));
      if (is_complete_at_the_call) {
        CHECK_ERROR(orEventSynchronize(event), orErrorInvalidValue);
      }
      bool ran = false;
      CHECK_OK(orStreamWaitEvent(pair.second, event, 0));
      CHECK_OK(launch(pair.second, "dropped", [&] { return ran = true, orSuccess; }));
      gate.open();
      CHECK_ERROR(orStreamSynchronize(pair.second), orErrorInvalidValue);
      CHECK_CONTAINS(orGetLastErrorMessage(), "inherited");
      CHECK(!ran);
      CHECK_ERROR(orStreamSynchronize(pair.first), orErrorInvalidValue);
      CHECK_OK(orEventDestroy(event));
    }
  }
}

TEST(a_failed_stream_does_not_wait) {
  const orEvent_t event = make_event();
  const orStream_t held = make_stream();
  const orStream_t failed = make_stream();
  Gate gate;
  gate.hold(held);
  CHECK_OK(orEventRecord(event, held));
  CHECK_OK(launch_failure(failed, orErrorNotSupported));
  CHECK_OK(orStreamWaitEvent(failed, event, 0));
  CHECK_ERROR(orStreamSynchronize(failed), orErrorNotSupported);
  CHECK_ERROR(orEventQuery(event), orErrorNotReady);
  gate.open();
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orEventDestroy(event));
}

TEST(work_may_wait_for_earlier_but_not_for_later_records_of_its_stream) {
  const orEvent_t earlier = make_event();
  const orEvent_t later = make_event();
  const orStream_t stream = make_stream();
  orError_t earlier_wait = orErrorUnknown;
  orError_t later_wait = orErrorUnknown;
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orEventRecord(earlier, stream));
  CHECK_OK(launch(stream, "waits", [&] {
    earlier_wait = orEventSynchronize(earlier);
    later_wait = orEventSynchronize(later);
    return orSuccess;
  }));
  CHECK_OK(orEventRecord(later, stream));
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(earlier_wait, orSuccess);
  CHECK_EQUAL(later_wait, orErrorNotPermitted);
  CHECK_OK(orEventDestroy(earlier));
  CHECK_OK(orEventDestroy(later));
}

TEST(records_outlive_their_event_and_their_stream) {
  const orEvent_t event = make_event();
  const orStream_t recorded = make_stream();
  Gate gate;
  gate.hold(recorded);
  CHECK_OK(orEventRecord(event, recorded));
  CHECK_OK(orStreamDestroy(recorded));
  const orStream_t waiting = make_stream();
  CHECK_OK(orStreamWaitEvent(waiting, event, 0));
  CHECK_OK(orEventDestroy(event));
  gate.open();
  CHECK_OK(orStreamSynchronize(waiting));
}

Gate* closed_gate = nullptr;

// One thread waits for each command of a stream, while 64 streams wait for its last one. The
// commands run when the thread has waited long enough to be asked whether it goes on.
TEST(a_command_that_retires_wakes_those_that_wait_for_it_and_no_others) {
  constexpr size_t rounds = 20;
  constexpr size_t waiting = 64;
  const orStream_t stream = make_stream();
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<orEvent_t> events;
  for (size_t round = 0; round < rounds; ++round) {
    gates.push_back(std::make_unique<Gate>());
    gates.back()->hold(stream);
    events.push_back(make_event());
    CHECK_OK(orEventRecord(events.back(), stream));
  }
  Gate last;
  last.hold(stream);
  const orEvent_t end = make_event();
  CHECK_OK(orEventRecord(end, stream));
  std::vector<orStream_t> others;
  std::atomic<size_t> passed{0};
  for (size_t i = 0; i < waiting; ++i) {
    others.push_back(make_stream());
    // The worker is at its wait, or about to be.
    gates.push_back(std::make_unique<Gate>());
    gates.back()->hold(others.back());
    CHECK_OK(orStreamWaitEvent(others.back(), end, 0));
    CHECK_OK(launch(others.back(), "after", [&passed] { return ++passed, orSuccess; }));
    gates.back()->wait_until_reached();
    gates.back()->open();
  }

  CHECK_OK(orSetWaitCheck([] { return closed_gate->open(), 0; }));
  long before = 0;
  for (size_t round = 0; round < rounds; ++round) {
    closed_gate = gates[round].get();
    CHECK_OK(orEventSynchronize(events[round]));
    if (round == 0) before = count_sleeps();  // by now, all of them wait
  }
  CHECK_OK(orSetWaitCheck(nullptr));
  // Per round, the stream and this thread sleep a few times, and the others do not wake.
  CHECK(count_sleeps() - before < long(waiting * rounds / 4));
  CHECK_EQUAL(passed.load(), 0u);
  last.open();
  for (orStream_t other : others) CHECK_OK(orStreamSynchronize(other));
  CHECK_EQUAL(passed.load(), waiting);
  for (orEvent_t event : events) CHECK_OK(orEventDestroy(event));
  CHECK_OK(orEventDestroy(end));
}

// Threads that wait for early, late and the same commands, in any order, with checks that end some
// of the waits: each wait ends.
TEST(no_wait_of_many_on_one_stream_is_lost) {
  constexpr size_t rounds = 300;
  constexpr size_t records_per_round = 5;
  constexpr size_t thread_count = 8;
  constexpr size_t waits = 400;
  const orStream_t stream = make_stream();
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<orEvent_t> events;
  for (size_t round = 0; round < rounds; ++round) {
    gates.push_back(std::make_unique<Gate>());
    gates.back()->hold(stream);
    for (size_t i = 0; i < records_per_round; ++i) {
      events.push_back(make_event());
      CHECK_OK(orEventRecord(events.back(), stream));
    }
  }
  std::atomic<size_t> complete{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      const bool has_check = t % 2 == 1;
      if (has_check) CHECK_OK(orSetWaitCheck([] { return 1; }));
      unsigned random = static_cast<unsigned>(t);
      for (size_t i = 0; i < waits; ++i) {
        random = random * 1664525u + 1013904223u;
        // Not far from where the stream may be.
        const size_t range = 20 * records_per_round;
        const size_t first = i * events.size() / waits;
        const size_t index = std::min(first + (random >> 16) % range, events.size() - 1);
        const orError_t error = orEventSynchronize(events[index]);
        CHECK(error == orSuccess || (has_check && error == orErrorNotReady));
        complete += error == orSuccess ? 1 : 0;
      }
    });
  }
  for (const auto& gate : gates) {
    gate->wait_until_reached();
    gate->open();
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(complete.load() >= thread_count / 2 * waits);
  CHECK_OK(orStreamSynchronize(stream));
  for (orEvent_t event : events) CHECK_OK(orEventDestroy(event));
}
