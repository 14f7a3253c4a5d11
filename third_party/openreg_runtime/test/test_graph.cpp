// Graphs: what captured work becomes, and how launches of it run. test_capture.cpp has the rules
// of capturing.
#include <atomic>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "check.h"

namespace {

orGraph_t capture(orStream_t stream, const std::function<void()>& body) {
  CHECK_OK(orStreamBeginCapture(stream, orStreamCaptureModeGlobal));
  body();
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  return graph;
}

orGraphExec_t instantiate(orGraph_t graph) {
  orGraphExec_t exec = nullptr;
  CHECK_OK(orGraphInstantiate(&exec, graph, 0));
  return exec;
}

// Captures, instantiates, and forgets the graph.
orGraphExec_t make_exec(orStream_t stream, const std::function<void()>& body) {
  orGraph_t graph = capture(stream, body);
  orGraphExec_t exec = instantiate(graph);
  CHECK_OK(orGraphDestroy(graph));
  return exec;
}

// Makes `later` wait for what `earlier` got so far, inside a capture or out of it.
void join(orStream_t later, orStream_t earlier) {
  const orEvent_t event = test::make_event();
  CHECK_OK(orEventRecord(event, earlier));
  CHECK_OK(orStreamWaitEvent(later, event, 0));
  CHECK_OK(orEventDestroy(event));
}

size_t node_count(orGraph_t graph) {
  size_t count = 0;
  CHECK_OK(orGraphGetNodeCount(graph, &count));
  return count;
}

size_t edge_count(orGraph_t graph) {
  size_t count = 0;
  CHECK_OK(orGraphGetEdgeCount(graph, &count));
  return count;
}

// Two threads that must be in the same place at the same time to go on.
class Meeting {
 public:
  void come() {
    std::unique_lock lock(mutex_);
    ++present_;
    changed_.notify_all();
    const int next = (present_ + 1) / 2 * 2;
    changed_.wait(lock, [&] { return present_ >= next; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int present_ = 0;
};

// Counts the closures alive.
struct Alive {
  explicit Alive(std::atomic<int>& shared_count) : count(&shared_count) { ++*count; }
  Alive(Alive&& other) noexcept : count(std::exchange(other.count, nullptr)) {}
  ~Alive() {
    if (count != nullptr) --*count;
  }
  std::atomic<int>* count;
};

std::vector<orActivityRecord> consume() {
  std::vector<orActivityRecord> records;
  CHECK_OK(orTraceConsume(
      [](const orActivityRecord* record, void* all) {
        static_cast<std::vector<orActivityRecord>*>(all)->push_back(*record);
      },
      &records));
  return records;
}

}  // namespace

TEST(captured_work_runs_on_each_launch_and_not_before) {
  const orStream_t stream = test::make_stream();
  int ran = 0;
  orGraph_t graph = capture(
      stream, [&] { CHECK_OK(test::launch(stream, "kernel", [&] { return ++ran, orSuccess; })); });
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(ran, 0);
  orGraphExec_t exec = instantiate(graph);
  for (int i = 0; i < 3; ++i) CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(ran, 3);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphLaunch(exec, nullptr));
  CHECK_OK(orDeviceSynchronize());
  CHECK_EQUAL(ran, 4);
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(kernels_host_functions_copies_and_fills_are_nodes) {
  const orStream_t stream = test::make_stream();
  char* first = test::device_malloc(1000);
  char* second = test::device_malloc(1000);
  char* pinned = test::host_malloc(1000);
  int ran = 0;
  orGraph_t graph = capture(stream, [&] {
    CHECK_OK(test::launch(stream, "kernel", [&] { return ++ran, orSuccess; }));
    CHECK_OK(orLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &ran));
    CHECK_OK(orMemsetAsync(first, 's', 1000, stream));
    CHECK_OK(orMemcpyAsync(second, first, 1000, orMemcpyDeviceToDevice, stream));
    CHECK_OK(orMemcpyAsync(pinned, second, 1000, orMemcpyDeviceToHost, stream));
  });
  CHECK_EQUAL(node_count(graph), 5u);
  CHECK_EQUAL(edge_count(graph), 4u);
  orGraphExec_t exec = instantiate(graph);
  for (int i = 1; i <= 2; ++i) {
    std::memset(pinned, '?', 1000);
    CHECK_OK(orGraphLaunch(exec, stream));
    CHECK_OK(orStreamSynchronize(stream));
    CHECK_EQUAL(ran, 2 * i);
    CHECK_EQUAL(pinned[999], 's');
  }
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(an_empty_graph_can_be_launched) {
  const orStream_t stream = test::make_stream();
  orGraph_t graph = capture(stream, [] {});
  CHECK_EQUAL(node_count(graph), 0u);
  CHECK_EQUAL(edge_count(graph), 0u);
  orGraphExec_t exec = instantiate(graph);
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(a_launch_keeps_the_order_of_its_stream) {
  const orStream_t stream = test::make_stream();
  std::string log;
  orGraphExec_t exec = make_exec(stream, [&] {
    CHECK_OK(test::launch(stream, "a", [&] { return log += 'a', orSuccess; }));
    CHECK_OK(test::launch(stream, "b", [&] { return log += 'b', orSuccess; }));
  });
  CHECK_OK(test::launch(stream, "<", [&] { return log += '<', orSuccess; }));
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(test::launch(stream, ">", [&] { return log += '>', orSuccess; }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(log, "<ab>");
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(branches_run_at_the_same_time_and_join) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream(1);
  Meeting meeting;
  std::atomic<int> before{0};
  std::atomic<int> between{0};
  std::atomic<bool> is_ordered{true};
  orGraph_t graph = capture(stream, [&] {
    CHECK_OK(test::launch(stream, "before", [&] { return ++before, orSuccess; }));
    join(other, stream);
    for (orStream_t branch : {stream, other}) {
      CHECK_OK(test::launch(branch, "branch", [&] {
        is_ordered = is_ordered && before > between / 2;
        meeting.come();
        ++between;
        return orSuccess;
      }));
    }
    join(stream, other);
    CHECK_OK(test::launch(stream, "after", [&] {
      is_ordered = is_ordered && between == 2 * before;
      return orSuccess;
    }));
  });
  CHECK_EQUAL(node_count(graph), 4u);
  CHECK_EQUAL(edge_count(graph), 4u);
  orGraphExec_t exec = instantiate(graph);
  for (int i = 0; i < 20; ++i) CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(is_ordered);
  CHECK_EQUAL(between.load(), 40);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(nodes_run_with_the_device_they_were_captured_on) {
  const orStream_t stream = test::make_stream(0);
  const orStream_t other = test::make_stream(1);
  int devices[2] = {-1, -1};
  orGraphExec_t exec = make_exec(stream, [&] {
    CHECK_OK(test::launch(stream, "first", [&] { return orGetDevice(&devices[0]); }));
    join(other, stream);
    CHECK_OK(test::launch(other, "second", [&] { return orGetDevice(&devices[1]); }));
    join(stream, other);
  });
  CHECK_OK(orGraphLaunch(exec, other));
  CHECK_OK(orStreamSynchronize(other));
  CHECK_EQUAL(devices[0], 0);
  CHECK_EQUAL(devices[1], 1);
  CHECK_OK(orGraphExecDestroy(exec));
}

// Many random forks and joins: each node checks that all it was captured after has run.
TEST(nodes_run_after_all_they_follow) {
  constexpr int stream_count = 4;
  constexpr int node_total = 300;
  std::vector<orStream_t> streams;
  for (int i = 0; i < stream_count; ++i) streams.push_back(test::make_stream(i % 2));
  std::vector<int> runs(node_total, 0);
  std::atomic<int> violations{0};
  unsigned random = 7;
  const auto pick = [&](int count) {
    random = random * 1664525u + 1013904223u;
    return static_cast<int>((random >> 16) % static_cast<unsigned>(count));
  };
  orGraph_t graph = capture(streams[0], [&] {
    // Per stream, what each of its next commands must find done.
    std::vector<std::set<int>> done(stream_count);
    for (int i = 1; i < stream_count; ++i) join(streams[size_t(i)], streams[0]);
    const auto follow = [&](int later, int earlier) {
      join(streams[size_t(later)], streams[size_t(earlier)]);
      const std::set<int> more = done[size_t(earlier)];
      done[size_t(later)].insert(more.begin(), more.end());
    };
    for (int node = 0; node < node_total; ++node) {
      const int branch = pick(stream_count);
      if (pick(4) == 0) follow(branch, pick(stream_count));
      CHECK_OK(test::launch(streams[size_t(branch)], "node",
                            [&runs, &violations, node, before = done[size_t(branch)]] {
                              for (int other : before) {
                                violations += runs[size_t(other)] != runs[size_t(node)] + 1;
                              }
                              ++runs[size_t(node)];
                              return orSuccess;
                            }));
      done[size_t(branch)].insert(node);
    }
    for (int i = 1; i < stream_count; ++i) follow(0, i);
  });
  CHECK_EQUAL(node_count(graph), size_t(node_total));
  orGraphExec_t exec = instantiate(graph);
  for (int i = 0; i < 10; ++i) CHECK_OK(orGraphLaunch(exec, streams[size_t(i) % 3]));
  for (orStream_t stream : streams) CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(violations.load(), 0);
  for (int count : runs) CHECK_EQUAL(count, 10);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(launches_of_one_graph_on_two_streams_follow_each_other) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream(1);
  test::Gate gate;
  std::atomic<int> running{0};
  int most = 0;
  int total = 0;
  orGraph_t graph = capture(stream, [&] {
    CHECK_OK(test::launch(stream, "kernel", [&] {
      most = std::max(most, ++running);
      ++total;
      --running;
      return orSuccess;
    }));
  });
  orGraphExec_t first = instantiate(graph);
  orGraphExec_t second = instantiate(graph);
  gate.hold(stream);
  CHECK_OK(orGraphLaunch(first, stream));
  CHECK_OK(orGraphLaunch(second, other));
  CHECK_OK(orGraphLaunch(first, stream));
  CHECK_ERROR(orStreamQuery(other), orErrorNotReady);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orStreamSynchronize(other));
  CHECK_EQUAL(most, 1);
  CHECK_EQUAL(total, 3);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(first));
  CHECK_OK(orGraphExecDestroy(second));
}

TEST(a_failed_node_fails_the_stream_and_drops_the_rest) {
  const orStream_t stream = test::make_stream();
  bool fails = true;
  int ran = 0;
  orGraphExec_t exec = make_exec(stream, [&] {
    CHECK_OK(test::launch(stream, "may fail", [&] {
      if (fails) orSetKernelError("on purpose", 5);
      return fails ? orErrorLaunchFailure : orSuccess;
    }));
    CHECK_OK(test::launch(stream, "later", [&] { return ++ran, orSuccess; }));
  });
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorLaunchFailure);
  CHECK_CONTAINS(orGetLastErrorMessage(), "'may fail'");
  CHECK_CONTAINS(orGetLastErrorMessage(), "on purpose");
  CHECK_EQUAL(orGetLastErrorTag(), 5);
  CHECK_EQUAL(ran, 0);
  fails = false;
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(ran, 1);
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(a_failed_branch_fails_the_stream_of_the_launch_once) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream(1);
  bool fails = true;
  int ran = 0;
  orGraphExec_t exec = make_exec(stream, [&] {
    join(other, stream);
    CHECK_OK(
        test::launch(other, "branch", [&] { return fails ? orErrorNotSupported : orSuccess; }));
    join(stream, other);
    CHECK_OK(test::launch(stream, "later", [&] { return ++ran, orSuccess; }));
  });
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorNotSupported);
  CHECK_EQUAL(ran, 0);
  fails = false;
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orDeviceSynchronizeAll());
  CHECK_EQUAL(ran, 1);
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(a_failed_stream_drops_a_launch_on_all_its_branches) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  std::atomic<int> ran{0};
  orGraphExec_t exec = make_exec(stream, [&] {
    join(other, stream);
    for (orStream_t branch : {stream, other}) {
      CHECK_OK(test::launch(branch, "branch", [&] { return ++ran, orSuccess; }));
    }
    join(stream, other);
  });
  CHECK_OK(test::launch_failure(stream, orErrorNotSupported));
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorNotSupported);
  CHECK_OK(orDeviceSynchronizeAll());
  CHECK_EQUAL(ran.load(), 0);
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(ran.load(), 2);
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(closures_live_as_long_as_the_graph_and_what_was_made_of_it) {
  const orStream_t stream = test::make_stream();
  std::atomic<int> alive{0};
  orGraph_t graph = capture(stream, [&] {
    CHECK_OK(test::launch(stream, "kernel", [token = Alive(alive)] { return orSuccess; }));
  });
  CHECK_EQUAL(alive.load(), 1);
  orGraphExec_t exec = instantiate(graph);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_EQUAL(alive.load(), 1);
  CHECK_OK(orGraphExecDestroy(exec));
  CHECK_EQUAL(alive.load(), 0);
  CHECK_OK(orGraphDestroy(nullptr));
  CHECK_OK(orGraphExecDestroy(nullptr));
}

TEST(a_destroyed_graph_still_runs_the_launches_it_has) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream(1);
  test::Gate gate;
  std::atomic<int> alive{0};
  std::atomic<int> ran{0};
  orGraphExec_t exec = make_exec(stream, [&] {
    join(other, stream);
    for (orStream_t branch : {stream, other}) {
      CHECK_OK(test::launch(branch, "branch",
                            [&ran, token = Alive(alive)] { return ++ran, orSuccess; }));
    }
    join(stream, other);
  });
  gate.hold(stream);
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orGraphExecDestroy(exec));
  gate.open();
  CHECK_OK(orDeviceSynchronizeAll());
  CHECK_EQUAL(ran.load(), 4);
  CHECK_EQUAL(alive.load(), 0);
}

TEST(a_launch_may_be_enqueued_while_an_earlier_one_runs) {
  const orStream_t stream = test::make_stream();
  test::Gate gate;
  int ran = 0;
  orGraphExec_t exec = make_exec(stream, [&] {
    CHECK_OK(test::launch(stream, "kernel", [&] {
      if (ran == 0) gate.pass();
      return ++ran, orSuccess;
    }));
  });
  CHECK_OK(orGraphLaunch(exec, stream));
  gate.wait_until_reached();
  for (int i = 0; i < 50; ++i) CHECK_OK(orGraphLaunch(exec, stream));
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(ran, 51);
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(a_long_chain_is_one_entry_of_the_queue) {
  const orStream_t stream = test::make_stream();
  test::Gate gate;
  int ran = 0;
  orGraphExec_t exec = make_exec(stream, [&] {
    for (int i = 0; i < 10'000; ++i) {
      CHECK_OK(orLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &ran));
    }
  });
  gate.hold(stream);
  // More work than entries fit into a queue.
  for (int i = 0; i < 100; ++i) CHECK_OK(orGraphLaunch(exec, stream));
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(ran, 1'000'000);
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(blocking_launches_of_graphs_return_the_kernels_error) {
  CHECK_EQUAL(setenv("OPENREG_LAUNCH_BLOCKING", "1", 1), 0);
  const orStream_t stream = test::make_stream();
  std::atomic<int> alive{0};
  int ran = 0;
  orGraphExec_t exec = make_exec(stream, [&] {
    CHECK_OK(test::launch(stream, "kernel", [&ran, token = Alive(alive)] {
      return ++ran == 1 ? orSuccess : orErrorNotSupported;
    }));
  });
  CHECK_EQUAL(ran, 0);
  CHECK_EQUAL(alive.load(), 1);
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_EQUAL(ran, 1);
  CHECK_ERROR(orGraphLaunch(exec, stream), orErrorNotSupported);
  CHECK_OK(orGraphExecDestroy(exec));
  CHECK_EQUAL(alive.load(), 0);
}

TEST(replayed_work_is_traced_under_the_id_of_its_launch) {
  const orStream_t stream = test::make_stream();
  char* memory = test::device_malloc(100);
  orGraphExec_t exec = make_exec(stream, [&] {
    CHECK_OK(test::launch(stream, "kernel", [] { return orSuccess; }));
    CHECK_OK(orMemsetAsync(memory, 0, 100, stream));
  });
  unsigned long long stream_id = 0;
  CHECK_OK(orStreamGetId(stream, &stream_id));
  CHECK_OK(orTraceStart(orActivityAll));
  CHECK_OK(orTracePushExternalId(42));
  CHECK_OK(orGraphLaunch(exec, stream));
  uint64_t popped = 0;
  CHECK_OK(orTracePopExternalId(&popped));
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orTraceStop());
  uint64_t launches[2] = {0, 0};
  int launch_count = 0;
  std::vector<orActivityRecord> work;
  for (const orActivityRecord& record : consume()) {
    if (record.kind == orActivityRuntime) {
      CHECK_EQUAL(std::string(record.name), "orGraphLaunch");
      CHECK(launch_count < 2);
      launches[launch_count++] = record.correlation_id;
    }
    if (record.kind == orActivityKernel || record.kind == orActivityMemset) work.push_back(record);
  }
  CHECK_EQUAL(launch_count, 2);
  CHECK_EQUAL(work.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    CHECK_EQUAL(std::string(work[i].name), i % 2 == 0 ? "kernel" : "orMemsetAsync");
    CHECK_EQUAL(work[i].correlation_id, launches[i / 2]);
    CHECK_EQUAL(work[i].has_external_id, i < 2 ? 1 : 0);
    CHECK_EQUAL(work[i].external_id, i < 2 ? 42u : 0u);
    CHECK_EQUAL(work[i].stream_id, stream_id);
    CHECK_EQUAL(work[i].bytes, i % 2 == 0 ? 0u : 100u);
  }
  // Untraced again.
  CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(consume().empty());
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(dot_files_name_kinds_kernels_streams_devices_and_bytes) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream(1);
  char* memory = test::device_malloc(100);
  unsigned long long ids[2] = {0, 0};
  CHECK_OK(orStreamGetId(stream, &ids[0]));
  CHECK_OK(orStreamGetId(other, &ids[1]));
  orGraph_t graph = capture(stream, [&] {
    CHECK_OK(test::launch(stream, "a \"quoted\" \\ name", [] { return orSuccess; }));
    join(other, stream);
    CHECK_OK(orMemsetAsync(memory, 0, 100, other));
    join(stream, other);
  });
  const std::string path = "/tmp/openreg-graph-" + std::to_string(getpid()) + ".dot";
  CHECK_OK(orGraphDebugDotPrint(graph, path.c_str(), 0));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  CHECK_EQUAL(unlink(path.c_str()), 0);
  CHECK_CONTAINS(text.str(), "digraph capture {");
  CHECK_CONTAINS(text.str(), "n0 [label=\"kernel\na \\\"quoted\\\" \\\\ name\nstream " +
                                 std::to_string(ids[0]) + " of device 0\"]");
  CHECK_CONTAINS(text.str(), "n1 [label=\"fill\nstream " + std::to_string(ids[1]) +
                                 " of device 1\n100 bytes\"]");
  CHECK_CONTAINS(text.str(), "n0 -> n1\n");
  CHECK_ERROR(orGraphDebugDotPrint(graph, "/nowhere/graph.dot", 0), orErrorOperatingSystem);
  CHECK_CONTAINS(orGetLastErrorMessage(), "/nowhere/graph.dot");
  CHECK_OK(orGraphDestroy(graph));
}

TEST(bad_arguments_of_graph_functions_are_refused) {
  const orStream_t stream = test::make_stream();
  orGraph_t graph = capture(stream, [] {});
  orGraphExec_t exec = instantiate(graph);
  size_t count = 0;
  CHECK_ERROR(orGraphGetNodeCount(nullptr, &count), orErrorInvalidResourceHandle);
  CHECK_ERROR(orGraphGetNodeCount(graph, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orGraphGetEdgeCount(nullptr, &count), orErrorInvalidResourceHandle);
  CHECK_ERROR(orGraphGetEdgeCount(graph, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orGraphDebugDotPrint(nullptr, "x", 0), orErrorInvalidResourceHandle);
  CHECK_ERROR(orGraphDebugDotPrint(graph, nullptr, 0), orErrorInvalidValue);
  CHECK_ERROR(orGraphDebugDotPrint(graph, "x", 1), orErrorInvalidValue);
  CHECK_ERROR(orGraphInstantiate(&exec, nullptr, 0), orErrorInvalidResourceHandle);
  CHECK_ERROR(orGraphInstantiate(nullptr, graph, 0), orErrorInvalidValue);
  CHECK_ERROR(orGraphInstantiate(&exec, graph, 1), orErrorInvalidValue);
  CHECK_ERROR(orGraphLaunch(nullptr, stream), orErrorInvalidResourceHandle);
  CHECK_OK(orStreamDestroy(stream));
  CHECK_ERROR(orGraphLaunch(exec, stream), orErrorInvalidResourceHandle);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(work_cannot_launch_a_graph) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  orGraphExec_t exec = make_exec(stream, [] {});
  CHECK_OK(test::launch(other, "launches", [=] { return orGraphLaunch(exec, stream); }));
  CHECK_ERROR(orStreamSynchronize(other), orErrorNotPermitted);
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(threads_may_launch_one_graph_at_the_same_time) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream(1);
  int ran[2] = {0, 0};
  orGraphExec_t exec = make_exec(stream, [&] {
    join(other, stream);
    CHECK_OK(test::launch(stream, "first", [&] { return ++ran[0], orSuccess; }));
    CHECK_OK(test::launch(other, "second", [&] { return ++ran[1], orSuccess; }));
    join(stream, other);
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) CHECK_OK(orGraphLaunch(exec, t == 0 ? other : stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_OK(orDeviceSynchronizeAll());
  CHECK_EQUAL(ran[0], 300);
  CHECK_EQUAL(ran[1], 300);
  CHECK_OK(orGraphExecDestroy(exec));
}
