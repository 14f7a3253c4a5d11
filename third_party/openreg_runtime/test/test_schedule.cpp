// Schedules: their orders, that these are reproducible, and that all work completes.
#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "check.h"

using test::check_child;
using test::Gate;
using test::launch;
using test::make_event;
using test::make_stream;

namespace {

constexpr std::array all_schedules = {"lazy", "eager", "0", "1", "2", "18446744073709551615"};

// What ran, in order.
class Log {
 public:
  void add(int what) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(what);
  }

  std::vector<int> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(entries_, {});
  }

  // Enqueues an entry.
  void launch(orStream_t stream, int what) {
    CHECK_OK(test::launch(stream, "log", [this, what] { return add(what), orSuccess; }));
  }

 private:
  std::mutex mutex_;
  std::vector<int> entries_;
};

void set_schedule(const char* schedule) { CHECK_OK(orSetSchedule(schedule)); }

void check_log(Log& log, const std::vector<int>& expected) {
  const std::vector<int> actual = log.take();
  CHECK_EQUAL(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) CHECK_EQUAL(actual[i], expected[i]);
}

// Makes `later` wait for what `earlier` got so far.
void join(orStream_t later, orStream_t earlier) {
  const orEvent_t event = make_event();
  CHECK_OK(orEventRecord(event, earlier));
  CHECK_OK(orStreamWaitEvent(later, event, 0));
  CHECK_OK(orEventDestroy(event));
}

orGraphExec_t make_exec(orStream_t stream, const std::function<void()>& body) {
  orGraph_t graph = nullptr;
  orGraphExec_t exec = nullptr;
  CHECK_OK(orStreamBeginCapture(stream, orStreamCaptureModeGlobal));
  body();
  CHECK_OK(orStreamEndCapture(stream, &graph));
  CHECK_OK(orGraphInstantiate(&exec, graph, 0));
  CHECK_OK(orGraphDestroy(graph));
  return exec;
}

// A program of one thread: four streams on two devices, some of them ordered.
std::vector<int> order_of(const std::vector<orStream_t>& streams, int rounds = 6) {
  Log log;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < streams.size(); ++i) log.launch(streams[i], round * 10 + int(i));
    if (round % 3 == 1) join(streams[0], streams[1]);
    if (round % 4 == 2) CHECK_OK(orStreamSynchronize(streams[2]));
  }
  CHECK_OK(orDeviceSynchronizeAll());
  return log.take();
}

std::vector<orStream_t> four_streams() {
  return {make_stream(0), make_stream(0), make_stream(0), make_stream(1)};
}

std::string current_schedule() {
  char text[OPENREG_SCHEDULE_SIZE];
  CHECK_OK(orGetSchedule(text, sizeof(text)));
  return text;
}

}  // namespace

// --- Choosing one

TEST(schedule_is_free_by_default) {
  unsetenv("OPENREG_SCHEDULE");
  CHECK_EQUAL(current_schedule(), "free");
}

TEST(schedule_of_the_environment_is_the_first) {
  for (const char* schedule : all_schedules) {
    check_child([schedule] {
      setenv("OPENREG_SCHEDULE", schedule, 1);
      CHECK_EQUAL(current_schedule(), schedule);
      CHECK_OK(orSetSchedule("free"));
      CHECK_EQUAL(current_schedule(), "free");
    });
  }
}

TEST(bad_schedules_are_refused) {
  for (const char* schedule : {"", "hasty", "-1", "1.5", "18446744073709551616", "lazy ", "0x1"}) {
    check_child([schedule] {
      CHECK_ERROR(orSetSchedule(schedule), orErrorInvalidValue);
      CHECK_CONTAINS(orGetLastErrorMessage(), std::string("got '") + schedule + "'");
    });
    check_child([schedule] {
      setenv("OPENREG_SCHEDULE", schedule, 1);
      CHECK_ERROR(orCheckSettings(), orErrorInvalidSetting);
      CHECK_CONTAINS(orGetLastErrorMessage(),
                     std::string("OPENREG_SCHEDULE is '") + schedule + "'");
    });
  }
  CHECK_ERROR(orSetSchedule(nullptr), orErrorInvalidValue);
}

TEST(text_of_a_schedule_needs_room) {
  char text[OPENREG_SCHEDULE_SIZE];
  set_schedule("18446744073709551615");
  CHECK_OK(orGetSchedule(text, 21));
  CHECK_ERROR(orGetSchedule(text, 20), orErrorInvalidValue);
  CHECK_ERROR(orGetSchedule(nullptr, 21), orErrorInvalidValue);
}

TEST(changing_the_schedule_waits_for_all_work) {
  Log log;
  set_schedule("lazy");
  log.launch(make_stream(0), 1);
  log.launch(make_stream(1), 2);
  set_schedule("free");
  check_log(log, {1, 2});
  Gate gate;
  gate.hold(nullptr);
  std::thread opening([&] {
    gate.wait_until_reached();
    gate.open();
  });
  set_schedule("lazy");
  opening.join();
}

TEST(work_cannot_change_the_schedule) {
  for (const char* schedule : {"free", "lazy", "3"}) {
    set_schedule(schedule);
    orError_t error = orSuccess;
    CHECK_OK(launch(nullptr, "change", [&] { return error = orSetSchedule("eager"), orSuccess; }));
    CHECK_OK(orStreamSynchronize(nullptr));
    CHECK_EQUAL(error, orErrorNotPermitted);
    CHECK_EQUAL(current_schedule(), schedule);
  }
}

// --- lazy

TEST(lazy_streams_run_when_somebody_waits_for_them) {
  set_schedule("lazy");
  Log log;
  const orStream_t first = make_stream();
  const orStream_t second = make_stream();
  log.launch(first, 1);
  log.launch(second, 2);
  log.launch(first, 3);
  check_log(log, {});
  CHECK_OK(orStreamSynchronize(second));
  check_log(log, {2});
  CHECK_OK(orDeviceSynchronize());
  check_log(log, {1, 3});
}

TEST(lazy_streams_run_no_further_than_the_event_that_is_waited_for) {
  set_schedule("lazy");
  Log log;
  const orStream_t first = make_stream(0);
  const orStream_t second = make_stream(1);
  const orEvent_t event = make_event();
  log.launch(first, 1);
  CHECK_OK(orEventRecord(event, first));
  log.launch(first, 2);
  CHECK_OK(orStreamWaitEvent(second, event, 0));
  log.launch(second, 3);
  CHECK_OK(orStreamSynchronize(second));
  check_log(log, {1, 3});
  CHECK_OK(orEventRecord(event, second));
  log.launch(first, 4);
  CHECK_OK(orEventSynchronize(event));
  check_log(log, {});
  CHECK_OK(orDeviceSynchronizeAll());
  check_log(log, {2, 4});
  CHECK_OK(orEventDestroy(event));
}

TEST(lazy_copies_that_wait_let_their_stream_run) {
  set_schedule("lazy");
  Log log;
  char* memory = test::device_malloc(1);
  char byte = 0;
  log.launch(nullptr, 1);
  CHECK_OK(orMemsetAsync(memory, 7, 1, nullptr));
  CHECK_OK(orMemcpy(&byte, memory, 1, orMemcpyDefault));
  CHECK_EQUAL(int(byte), 7);
  check_log(log, {1});
  log.launch(nullptr, 2);
  CHECK_OK(orFree(memory));
  check_log(log, {2});
}

// --- eager

TEST(eager_work_is_done_when_its_submission_returns) {
  set_schedule("eager");
  Log log;
  const orStream_t first = make_stream();
  const orStream_t second = make_stream();
  for (int i = 0; i < 4; ++i) {
    log.launch(i % 2 == 0 ? first : second, i);
    check_log(log, {i});
  }
  CHECK_OK(orStreamQuery(first));
}

TEST(eager_work_fails_later_as_other_work_does) {
  set_schedule("eager");
  CHECK_OK(test::launch_failure(nullptr, orErrorNotSupported));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorNotSupported);
}

TEST(eager_submissions_do_not_wait_behind_a_host_function) {
  set_schedule("eager");
  Log log;
  Gate gate;
  const orStream_t held = make_stream();
  const orStream_t waiting = make_stream();
  gate.hold(held);
  log.launch(held, 1);
  join(waiting, held);
  log.launch(waiting, 2);
  log.launch(nullptr, 3);
  check_log(log, {3});
  gate.open();
  CHECK_OK(orStreamSynchronize(waiting));
  check_log(log, {1, 2});
}

// --- Seeds

TEST(a_seed_gives_the_same_order_each_time) {
  const std::vector<orStream_t> streams = four_streams();
  for (const char* seed : {"0", "1", "2", "3", "12345678901234567890"}) {
    set_schedule(seed);
    const std::vector<int> first = order_of(streams);
    for (int repetition = 1; repetition < 5; ++repetition) {
      set_schedule(seed);
      CHECK(order_of(streams) == first);
    }
  }
}

TEST(a_seed_gives_the_same_order_in_each_process) {
  // A child prints its order; it has streams of its own.
  std::set<std::string> orders;
  for (int repetition = 0; repetition < 5; ++repetition) {
    const test::ChildResult result = test::run_child([] {
      setenv("OPENREG_SCHEDULE", "17", 1);
      for (const int entry : order_of(four_streams())) std::cerr << entry << " ";
    });
    CHECK_EQUAL(result.status, 0);
    orders.insert(result.error);
  }
  CHECK_EQUAL(orders.size(), size_t{1});
}

TEST(seeds_give_different_orders) {
  const std::vector<orStream_t> streams = four_streams();
  std::set<std::vector<int>> orders;
  for (int seed = 0; seed < 20; ++seed) {
    set_schedule(std::to_string(seed).c_str());
    orders.insert(order_of(streams));
  }
  CHECK(orders.size() >= 10);
}

TEST(lazy_and_eager_give_the_same_order_each_time) {
  const std::vector<orStream_t> streams = four_streams();
  for (const char* schedule : {"lazy", "eager"}) {
    set_schedule(schedule);
    const std::vector<int> first = order_of(streams);
    for (int repetition = 1; repetition < 5; ++repetition) CHECK(order_of(streams) == first);
  }
}

TEST(every_order_is_one_that_the_program_allows) {
  const std::vector<orStream_t> streams = four_streams();
  for (int seed = 0; seed < 30; ++seed) {
    set_schedule(std::to_string(seed).c_str());
    const std::vector<int> order = order_of(streams);
    const auto place = [&](int what) {
      return std::find(order.begin(), order.end(), what) - order.begin();
    };
    CHECK_EQUAL(order.size(), size_t{24});
    for (int round = 0; round < 5; ++round) {
      for (int i = 0; i < 4; ++i) CHECK(place(round * 10 + i) < place(round * 10 + 10 + i));
    }
    CHECK(place(11) < place(20));  // the first join, and the second
    CHECK(place(41) < place(50));
  }
}

TEST(a_missing_wait_shows_in_some_schedule_and_a_right_program_in_none) {
  const orStream_t writer = make_stream();
  const orStream_t reader = make_stream();
  for (const bool is_right : {false, true}) {
    std::set<int> seen;
    for (const char* schedule : {"lazy", "eager", "1", "2", "3", "4", "5", "6"}) {
      for (int repetition = 0; repetition < 5; ++repetition) {
        set_schedule(schedule);
        std::atomic<int> value{0};
        int read = -1;
        CHECK_OK(launch(writer, "write", [&] { return value = 1, orSuccess; }));
        if (is_right) join(reader, writer);
        CHECK_OK(launch(reader, "read", [&] { return read = value, orSuccess; }));
        CHECK_OK(orStreamSynchronize(reader));
        CHECK_OK(orDeviceSynchronize());
        seen.insert(read);
      }
    }
    CHECK(seen == (is_right ? std::set{1} : std::set{0, 1}));
  }
}

TEST(work_that_is_far_behind_is_reached_by_some_seed) {
  // The mistake shows only if one stream is slow after 30 pieces of work.
  const orStream_t fast = make_stream();
  const orStream_t slow = make_stream();
  int found = 0;
  for (int seed = 0; seed < 100; ++seed) {
    set_schedule(std::to_string(seed).c_str());
    std::atomic<int> progress{0};
    bool is_behind = false;
    for (int i = 0; i < 30; ++i) {
      CHECK_OK(launch(slow, "step", [&] { return ++progress, orSuccess; }));
    }
    CHECK_OK(launch(fast, "look", [&] {
      is_behind = progress > 15 && progress < 30;
      return orSuccess;
    }));
    CHECK_OK(orDeviceSynchronize());
    found += is_behind ? 1 : 0;
  }
  CHECK(found > 0);
}

// --- What holds for all of them

TEST(a_loop_of_queries_ends) {
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    Log log;
    const orStream_t stream = make_stream();
    const orEvent_t event = make_event();
    log.launch(stream, 1);
    CHECK_OK(orEventRecord(event, stream));
    log.launch(stream, 2);
    orError_t answer = orErrorNotReady;
    for (int i = 0; i < 2 && answer != orSuccess; ++i) answer = orEventQuery(event);
    CHECK_OK(answer);
    answer = orErrorNotReady;
    for (int i = 0; i < 2 && answer != orSuccess; ++i) answer = orStreamQuery(stream);
    CHECK_OK(answer);
    check_log(log, {1, 2});
    CHECK_OK(orEventDestroy(event));
  }
}

TEST(a_query_first_says_how_things_are) {
  set_schedule("lazy");
  Log log;
  log.launch(nullptr, 1);
  CHECK_ERROR(orStreamQuery(nullptr), orErrorNotReady);
  CHECK_OK(orStreamQuery(nullptr));
}

TEST(completeness_of_an_event_lets_nothing_run) {
  set_schedule("lazy");
  const orEvent_t event = make_event();
  int is_complete = 0;
  CHECK_OK(orEventIsComplete(&is_complete, event));
  CHECK_EQUAL(is_complete, 1);
  CHECK_OK(launch(nullptr, "work", [] { return orSuccess; }));
  CHECK_OK(orEventRecord(event, nullptr));
  for (int i = 0; i < 10; ++i) {
    CHECK_OK(orEventIsComplete(&is_complete, event));
    CHECK_EQUAL(is_complete, 0);
  }
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orEventIsComplete(&is_complete, event));
  CHECK_EQUAL(is_complete, 1);
  CHECK_ERROR(orEventIsComplete(nullptr, event), orErrorInvalidValue);
  CHECK_OK(orEventDestroy(event));
}

TEST(a_query_behind_a_gate_returns) {
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    Gate gate;
    const orStream_t stream = make_stream();
    gate.hold(stream);
    CHECK_OK(launch(stream, "work", [] { return orSuccess; }));
    CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
    CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
    gate.open();
    while (orStreamQuery(stream) == orErrorNotReady) std::this_thread::yield();
  }
}

TEST(host_functions_begin_without_a_wait) {
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    Log log;
    Gate gate;
    const orStream_t first = make_stream(0);
    const orStream_t second = make_stream(1);
    log.launch(first, 1);
    join(second, first);
    gate.hold(second);
    gate.wait_until_reached();
    check_log(log, {1});
    gate.open();
    CHECK_OK(orDeviceSynchronizeAll());
  }
}

TEST(a_full_queue_lets_its_stream_run) {
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    std::atomic<int> count{0};
    const orStream_t first = make_stream();
    const orStream_t second = make_stream();
    for (int i = 0; i < 10'000; ++i) {
      CHECK_OK(launch(i % 2 == 0 ? first : second, "count", [&] { return ++count, orSuccess; }));
    }
    CHECK_OK(orDeviceSynchronize());
    CHECK_EQUAL(count.load(), 10'000);
  }
}

TEST(graphs_with_branches_run) {
  const orStream_t main = make_stream();
  const orStream_t side = make_stream();
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    Log log;
    const orGraphExec_t exec = make_exec(main, [&] {
      log.launch(main, 1);
      join(side, main);
      log.launch(side, 2);
      log.launch(main, 3);
      join(main, side);
      log.launch(main, 4);
    });
    for (int i = 0; i < 3; ++i) CHECK_OK(orGraphLaunch(exec, i == 1 ? side : main));
    CHECK_OK(orDeviceSynchronize());
    const std::vector<int> order = log.take();
    CHECK_EQUAL(order.size(), size_t{12});
    for (size_t i = 0; i < order.size(); i += 4) {
      CHECK_EQUAL(order[i], 1);
      CHECK_EQUAL(order[i + 1] + order[i + 2], 5);
      CHECK_EQUAL(order[i + 3], 4);
    }
    CHECK_OK(orGraphExecDestroy(exec));
  }
}

TEST(a_graph_with_a_gate_holds_its_stream_alone) {
  const orStream_t main = make_stream();
  const orStream_t other = make_stream();
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    Log log;
    Gate gate;
    const orGraphExec_t exec = make_exec(main, [&] { gate.hold(main); });
    CHECK_OK(orGraphLaunch(exec, main));
    gate.wait_until_reached();
    log.launch(other, 1);
    CHECK_OK(orStreamSynchronize(other));
    check_log(log, {1});
    gate.open();
    CHECK_OK(orStreamSynchronize(main));
    CHECK_OK(orGraphExecDestroy(exec));
  }
}

TEST(work_that_waits_for_another_stream_gets_on) {
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    Log log;
    const orStream_t first = make_stream();
    const orStream_t second = make_stream();
    log.launch(second, 1);
    CHECK_OK(launch(first, "waits", [&] {
      CHECK_OK(orStreamSynchronize(second));
      log.launch(second, 2);
      CHECK_ERROR(orStreamSynchronize(first), orErrorNotPermitted);
      while (orStreamQuery(second) == orErrorNotReady) std::this_thread::yield();
      log.add(3);
      return orSuccess;
    }));
    CHECK_OK(orDeviceSynchronize());
    check_log(log, {1, 2, 3});
  }
}

TEST(a_failed_stream_drops_its_waits) {
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    Gate gate;
    const orStream_t held = make_stream();
    const orStream_t failing = make_stream();
    gate.hold(held);
    CHECK_OK(test::launch_failure(failing, orErrorNotSupported));
    join(failing, held);
    CHECK_ERROR(orStreamSynchronize(failing), orErrorNotSupported);
    gate.open();
    CHECK_OK(orStreamSynchronize(held));
  }
}

TEST(destroyed_streams_run_to_their_end) {
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    Log log;
    const orStream_t stream = make_stream();
    for (int i = 0; i < 3; ++i) log.launch(stream, i);
    CHECK_OK(orStreamDestroy(stream));
    check_log(log, {0, 1, 2});
    int has_ended = 0;
    CHECK_OK(orStreamHasEnded(&has_ended, stream));
    CHECK_EQUAL(has_ended, 1);
  }
}

TEST(several_host_threads_submit_and_wait) {
  for (const char* schedule : all_schedules) {
    set_schedule(schedule);
    std::atomic<int> count{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        const orStream_t own = make_stream(thread % 2);
        for (int i = 0; i < 200; ++i) {
          const orStream_t stream = i % 2 == 0 ? own : nullptr;
          CHECK_OK(launch(stream, "count", [&] { return ++count, orSuccess; }));
          if (i % 7 == 0) join(own, nullptr);
          if (i % 20 == 0) CHECK_OK(orStreamSynchronize(stream));
          if (i % 50 == 0) CHECK_OK(orDeviceSynchronizeAll());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_OK(orDeviceSynchronizeAll());
    CHECK_EQUAL(count.load(), 800);
  }
}

TEST(interprocess_events_complete_without_a_wait_here) {
  for (const char* schedule : all_schedules) {
    int to_child[2];
    int to_parent[2];
    CHECK_EQUAL(pipe(to_child), 0);
    CHECK_EQUAL(pipe(to_parent), 0);
    check_child([&] {
      // A child of its own waits on the host, and with a stream, for an event of this process.
      const pid_t waiting = fork();
      setenv("OPENREG_SCHEDULE", schedule, 1);
      orIpcEventHandle_t handle{};
      orEvent_t event = nullptr;
      char byte = 0;
      if (waiting == 0) {
        CHECK_EQUAL(read(to_child[0], &handle, sizeof(handle)), ssize_t(sizeof(handle)));
        CHECK_OK(orIpcOpenEventHandle(&event, handle));
        CHECK_OK(orStreamWaitEvent(nullptr, event, 0));
        CHECK_OK(launch(make_stream(), "other", [] { return orSuccess; }));
        CHECK_OK(orEventSynchronize(event));
        CHECK_OK(orDeviceSynchronize());
        CHECK_EQUAL(write(to_parent[1], &byte, 1), ssize_t{1});
        _exit(0);
      }
      CHECK_OK(orEventCreateWithFlags(&event, orEventInterprocess | orEventDisableTiming));
      CHECK_OK(launch(nullptr, "work", [] { return orSuccess; }));
      CHECK_OK(orEventRecord(event, nullptr));
      CHECK_OK(orIpcGetEventHandle(&handle, event));
      CHECK_EQUAL(write(to_child[1], &handle, sizeof(handle)), ssize_t(sizeof(handle)));
      CHECK_EQUAL(read(to_parent[0], &byte, 1), ssize_t{1});
      int status = -1;
      CHECK_EQUAL(waitpid(waiting, &status, 0), waiting);
      CHECK_EQUAL(status, 0);
      _exit(0);
    });
  }
}

TEST(a_process_ends_with_work_pending_in_each_schedule) {
  for (const char* schedule : {"lazy", "eager", "5", "6"}) {
    for (int i = 0; i < 100; ++i) {
      check_child([schedule, i] {
        setenv("OPENREG_SCHEDULE", schedule, 1);
        const orStream_t first = make_stream(0);
        const orStream_t second = make_stream(1);
        auto* gate = new Gate;
        if (i % 3 == 0) gate->hold(first);
        for (int j = 0; j < 20; ++j) {
          CHECK_OK(launch(first, "work", [] { return orSuccess; }));
          join(second, first);
          CHECK_OK(launch(second, "work", [] { return orSuccess; }));
          join(first, second);
        }
        if (i % 3 == 0) gate->open();
      });
    }
  }
}

TEST(exit_releases_threads_that_wait_for_their_turn) {
  for (const char* schedule : {"lazy", "5"}) {  // each ends after the two seconds of Note [Exit]
    check_child([schedule] {
      set_schedule(schedule);
      static std::thread waiting;
      static std::thread submitting;
      std::atexit([] {
        waiting.join();
        submitting.join();
      });
      static const orStream_t blocked = make_stream();
      static Gate& gate = *new Gate;
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
}

TEST(a_forked_child_ends_well_in_each_schedule) {
  for (const char* schedule : all_schedules) {
    check_child([schedule] {
      set_schedule(schedule);
      // A thread that starts takes locks of libasan, which the child would wait for in vain.
      CHECK_OK(launch(nullptr, "first", [] { return orSuccess; }));
      CHECK_OK(orStreamSynchronize(nullptr));
      CHECK_OK(launch(nullptr, "work", [] { return orSuccess; }));
      check_child([] {
        char text[OPENREG_SCHEDULE_SIZE];
        int is_complete = 0;
        CHECK_ERROR(orStreamQuery(nullptr), orErrorForked);
        CHECK_ERROR(orSetSchedule("free"), orErrorForked);
        CHECK_ERROR(orEventIsComplete(&is_complete, nullptr), orErrorForked);
        CHECK_OK(orGetSchedule(text, sizeof(text)));
      });
      CHECK_OK(orStreamSynchronize(nullptr));
    });
  }
}
