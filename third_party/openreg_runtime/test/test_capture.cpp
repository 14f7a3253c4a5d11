// Captures: calls that are recorded, calls that end a capture, and invalid calls. test_graph.cpp
// tests the resulting graphs.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace {

constexpr orStreamCaptureMode modes[] = {orStreamCaptureModeGlobal, orStreamCaptureModeThreadLocal,
                                         orStreamCaptureModeRelaxed};

orStreamCaptureStatus status_of(orStream_t stream) {
  orStreamCaptureStatus status = orStreamCaptureStatusNone;
  CHECK_OK(orStreamIsCapturing(stream, &status));
  return status;
}

void begin(orStream_t stream, orStreamCaptureMode mode = orStreamCaptureModeGlobal) {
  CHECK_OK(orStreamBeginCapture(stream, mode));
}

// Ends a capture that is good.
void end(orStream_t stream) {
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  CHECK_OK(orGraphDestroy(graph));
}

// Checks that a capture ends with an error and no graph, and that its stream then works.
void check_end(orStream_t stream, orError_t expected) {
  orGraph_t graph = nullptr;
  CHECK_ERROR(orStreamEndCapture(stream, &graph), expected);
  CHECK(graph == nullptr);
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusNone);
  bool has_run = false;
  CHECK_OK(test::launch(stream, "works", [&] { return has_run = true, orSuccess; }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(has_run);
}

orError_t launch_nothing(orStream_t stream) {
  return test::launch(stream, "nothing", [] { return orSuccess; });
}

// Makes `later` wait for what `earlier` got so far.
void follow(orStream_t later, orStream_t earlier) {
  const orEvent_t event = test::make_event();
  CHECK_OK(orEventRecord(event, earlier));
  CHECK_OK(orStreamWaitEvent(later, event, 0));
  CHECK_OK(orEventDestroy(event));
}

size_t count_edges(orGraph_t graph) {
  size_t count = 0;
  CHECK_OK(orGraphGetEdgeCount(graph, &count));
  return count;
}

using Edges = std::set<std::pair<size_t, size_t>>;

// The edges of a graph, as it prints them.
Edges edges_of(orGraph_t graph) {
  char path[] = "/tmp/openreg_capture_XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0);
  CHECK_EQUAL(close(file), 0);
  CHECK_OK(orGraphDebugDotPrint(graph, path, 0));
  Edges edges;
  std::ifstream text(path);
  for (std::string line; std::getline(text, line);) {
    size_t from = 0;
    size_t to = 0;
    if (std::sscanf(line.c_str(), " n%zu -> n%zu", &from, &to) == 2) edges.insert({from, to});
  }
  CHECK_EQUAL(unlink(path), 0);
  return edges;
}

orStreamCaptureMode exchange_mode(orStreamCaptureMode mode) {
  CHECK_OK(orThreadExchangeStreamCaptureMode(&mode));
  return mode;
}

// Every unsafe call, with arguments that are good outside of captures.
class UnsafeCalls {
 public:
  UnsafeCalls()
      : stream_(test::make_stream()),
        event_(test::make_event()),
        memory_(test::device_malloc(10)),
        pinned_(test::host_malloc(10)) {
    CHECK_OK(orEventRecord(event_, stream_));
    CHECK_OK(orStreamSynchronize(stream_));
  }

  UnsafeCalls(const UnsafeCalls&) = delete;
  UnsafeCalls& operator=(const UnsafeCalls&) = delete;
  ~UnsafeCalls() { CHECK_OK(orEventDestroy(event_)); }

  std::vector<std::pair<const char*, std::function<orError_t()>>> all() {
    return {
        {"orMalloc",
         [this] {
           void* memory = nullptr;
           const orError_t error = orMalloc(&memory, 10);
           return error == orSuccess ? orFree(memory) : error;
         }},
        {"orFree", [this] { return replacing(memory_, orFree(memory_), orMalloc); }},
        {"orMallocHost",
         [this] {
           void* memory = nullptr;
           const orError_t error = orMallocHost(&memory, 10);
           return error == orSuccess ? orFreeHost(memory) : error;
         }},
        {"orFreeHost", [this] { return replacing(pinned_, orFreeHost(pinned_), orMallocHost); }},
        {"orMemcpy", [this] { return orMemcpy(pinned_, memory_, 10, orMemcpyDefault); }},
        {"orMemset", [this] { return orMemset(memory_, 0, 10); }},
        {"orMemcpyWithStream",
         [this] { return orMemcpyWithStream(pinned_, memory_, 10, orMemcpyDefault, stream_); }},
        {"orMemcpyAsync",
         [this] { return orMemcpyAsync(host_, memory_, 10, orMemcpyDefault, stream_); }},
        {"orStreamQuery", [this] { return orStreamQuery(stream_); }},
        {"orStreamSynchronize", [this] { return orStreamSynchronize(stream_); }},
        {"orEventQuery", [this] { return orEventQuery(event_); }},
        {"orEventSynchronize", [this] { return orEventSynchronize(event_); }},
    };
  }

 private:
  template <typename Allocate>
  static orError_t replacing(char*& memory, orError_t error, Allocate allocate) {
    if (error != orSuccess) return error;
    void* fresh = nullptr;
    CHECK_OK(allocate(&fresh, 10));
    memory = static_cast<char*>(fresh);
    return orSuccess;
  }

  orStream_t stream_;
  orEvent_t event_;
  char* memory_;
  char* pinned_;
  char host_[10] = {};
};

}  // namespace

TEST(a_stream_captures_from_begin_to_end) {
  const orStream_t stream = test::make_stream();
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusNone);
  begin(stream);
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusActive);
  CHECK_EQUAL(status_of(nullptr), orStreamCaptureStatusNone);
  end(stream);
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusNone);
  CHECK_ERROR(orStreamIsCapturing(stream, nullptr), orErrorInvalidValue);
}

TEST(each_capture_has_a_number_of_its_own) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  const orEvent_t event = test::make_event();
  orStreamCaptureStatus status = orStreamCaptureStatusInvalidated;
  unsigned long long first = 0;
  unsigned long long second = 0;
  CHECK_OK(orStreamGetCaptureInfo(stream, &status, &first));
  CHECK_EQUAL(status, orStreamCaptureStatusNone);
  CHECK_EQUAL(first, 0u);
  begin(stream);
  CHECK_OK(orStreamGetCaptureInfo(stream, &status, &first));
  CHECK_EQUAL(status, orStreamCaptureStatusActive);
  CHECK(first > 0);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orStreamWaitEvent(other, event, 0));
  CHECK_OK(orStreamGetCaptureInfo(other, &status, &second));
  CHECK_EQUAL(second, first);
  end(stream);
  begin(stream);
  CHECK_OK(orStreamGetCaptureInfo(stream, &status, &second));
  CHECK(second > first);
  CHECK_OK(orStreamGetCaptureInfo(stream, &status, nullptr));
  CHECK_ERROR(orStreamGetCaptureInfo(stream, nullptr, &second), orErrorInvalidValue);
  end(stream);
  CHECK_OK(orEventDestroy(event));
}

TEST(begin_and_end_must_match) {
  const orStream_t stream = test::make_stream();
  orGraph_t graph = nullptr;
  CHECK_ERROR(orStreamEndCapture(stream, &graph), orErrorIllegalState);
  CHECK_ERROR(orStreamEndCapture(stream, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orStreamBeginCapture(stream, static_cast<orStreamCaptureMode>(3)),
              orErrorInvalidValue);
  begin(stream);
  CHECK_ERROR(orStreamBeginCapture(stream, orStreamCaptureModeGlobal), orErrorIllegalState);
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusActive);
  end(stream);
}

TEST(work_submitted_before_a_capture_is_not_part_of_it) {
  const orStream_t stream = test::make_stream();
  test::Gate gate;
  int before = 0;
  gate.hold(stream);
  CHECK_OK(test::launch(stream, "before", [&] { return ++before, orSuccess; }));
  begin(stream);
  CHECK_OK(launch_nothing(stream));
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  size_t count = 0;
  CHECK_OK(orGraphGetNodeCount(graph, &count));
  CHECK_EQUAL(count, 1u);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(before, 1);
  CHECK_OK(orGraphDestroy(graph));
}

TEST(a_wait_pulls_a_stream_into_the_capture) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream(1);
  const orEvent_t event = test::make_event();
  begin(stream);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orStreamWaitEvent(other, event, 0));
  CHECK_EQUAL(status_of(other), orStreamCaptureStatusActive);
  CHECK_OK(launch_nothing(other));
  CHECK_OK(orEventRecord(event, other));
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  end(stream);
  CHECK_EQUAL(status_of(other), orStreamCaptureStatusNone);
  CHECK_OK(orEventDestroy(event));
}

TEST(a_stream_that_got_no_work_need_not_be_joined) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  const orEvent_t event = test::make_event();
  begin(stream);
  CHECK_OK(launch_nothing(stream));
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orStreamWaitEvent(other, event, 0));
  end(stream);
  CHECK_OK(orEventDestroy(event));
}

TEST(unjoined_work_ends_the_capture_with_an_error) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  const orEvent_t event = test::make_event();
  begin(stream);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orStreamWaitEvent(other, event, 0));
  CHECK_OK(test::launch(other, "left alone", [] { return orSuccess; }));
  check_end(stream, orErrorStreamCaptureUnjoined);
  CHECK_EQUAL(status_of(other), orStreamCaptureStatusNone);
  CHECK_OK(launch_nothing(other));
  CHECK_OK(orStreamSynchronize(other));
  CHECK_OK(orEventDestroy(event));
}

TEST(a_join_covers_only_what_was_recorded) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  const orEvent_t event = test::make_event();
  begin(stream);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orStreamWaitEvent(other, event, 0));
  CHECK_OK(orEventRecord(event, other));
  CHECK_OK(launch_nothing(other));
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  orGraph_t graph = nullptr;
  CHECK_ERROR(orStreamEndCapture(stream, &graph), orErrorStreamCaptureUnjoined);
  CHECK_CONTAINS(orGetLastErrorMessage(), "'nothing'");
  CHECK_OK(orEventDestroy(event));
}

TEST(a_capture_ends_on_the_stream_where_it_began) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  const orEvent_t event = test::make_event();
  begin(stream);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orStreamWaitEvent(other, event, 0));
  orGraph_t graph = nullptr;
  CHECK_ERROR(orStreamEndCapture(other, &graph), orErrorStreamCaptureUnmatched);
  CHECK_ERROR(orStreamEndCapture(other, &graph), orErrorStreamCaptureInvalidated);
  check_end(stream, orErrorStreamCaptureInvalidated);
  CHECK_EQUAL(status_of(other), orStreamCaptureStatusNone);
  CHECK_OK(orEventDestroy(event));
}

TEST(a_capture_ends_on_the_thread_that_began_it) {
  const orStream_t stream = test::make_stream();
  for (orStreamCaptureMode mode : {orStreamCaptureModeGlobal, orStreamCaptureModeThreadLocal}) {
    begin(stream, mode);
    std::thread([&] {
      orGraph_t graph = nullptr;
      CHECK_ERROR(orStreamEndCapture(stream, &graph), orErrorStreamCaptureWrongThread);
    }).join();
    CHECK_EQUAL(status_of(stream), orStreamCaptureStatusActive);
    end(stream);
  }
}

TEST(a_relaxed_capture_ends_on_any_thread) {
  const orStream_t stream = test::make_stream();
  begin(stream, orStreamCaptureModeRelaxed);
  std::thread([&] { end(stream); }).join();
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusNone);
}

TEST(other_threads_may_submit_to_a_capture) {
  for (orStreamCaptureMode mode : modes) {
    const orStream_t stream = test::make_stream();
    begin(stream, mode);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) CHECK_OK(launch_nothing(stream));
      });
    }
    for (std::thread& thread : threads) thread.join();
    orGraph_t graph = nullptr;
    CHECK_OK(orStreamEndCapture(stream, &graph));
    size_t count = 0;
    CHECK_OK(orGraphGetNodeCount(graph, &count));
    CHECK_EQUAL(count, 300u);
    CHECK_OK(orGraphGetEdgeCount(graph, &count));
    CHECK_EQUAL(count, 299u);
    CHECK_OK(orGraphDestroy(graph));
  }
}

TEST(two_captures_cannot_be_merged) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  const orEvent_t event = test::make_event();
  begin(stream);
  begin(other);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_ERROR(orStreamWaitEvent(other, event, 0), orErrorStreamCaptureMerge);
  orGraph_t graph = nullptr;
  CHECK_ERROR(orStreamEndCapture(other, &graph), orErrorStreamCaptureInvalidated);
  check_end(stream, orErrorStreamCaptureInvalidated);
  CHECK_OK(orEventDestroy(event));
}

TEST(a_capture_cannot_wait_for_what_was_recorded_outside) {
  const orStream_t stream = test::make_stream();
  const orEvent_t event = test::make_event();
  const orEvent_t never_recorded = test::make_event();
  CHECK_OK(orEventRecord(event, nullptr));
  CHECK_OK(orEventSynchronize(event));
  begin(stream);
  CHECK_OK(orStreamWaitEvent(stream, never_recorded, 0));
  CHECK_ERROR(orStreamWaitEvent(stream, event, 0), orErrorStreamCaptureIsolation);
  CHECK_CONTAINS(orGetLastErrorMessage(), "recorded outside");
  check_end(stream, orErrorStreamCaptureInvalidated);

  begin(stream);
  CHECK_OK(orEventRecord(event, stream));
  end(stream);
  begin(stream);
  CHECK_ERROR(orStreamWaitEvent(stream, event, 0), orErrorStreamCaptureIsolation);
  check_end(stream, orErrorStreamCaptureInvalidated);
  CHECK_OK(orEventDestroy(event));
  CHECK_OK(orEventDestroy(never_recorded));
}

TEST(a_captured_event_has_no_end_to_wait_for) {
  const orStream_t stream = test::make_stream();
  const orEvent_t event = test::make_event();
  const orEvent_t other = test::make_event();
  CHECK_OK(orEventRecord(other, stream));
  begin(stream, orStreamCaptureModeRelaxed);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_ERROR(orEventQuery(event), orErrorCapturedEvent);
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusInvalidated);
  check_end(stream, orErrorStreamCaptureInvalidated);
  float elapsed_ms = 0;
  CHECK_ERROR(orEventSynchronize(event), orErrorCapturedEvent);
  CHECK_ERROR(orEventElapsedTime(&elapsed_ms, other, event), orErrorCapturedEvent);
  CHECK_ERROR(orStreamWaitEvent(stream, event, 0), orErrorCapturedEvent);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orEventDestroy(event));
  CHECK_OK(orEventDestroy(other));
}

TEST(an_event_recorded_again_outside_leaves_the_capture) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  const orEvent_t event = test::make_event();
  begin(stream, orStreamCaptureModeRelaxed);
  CHECK_OK(orEventRecord(event, stream));
  CHECK_OK(orEventRecord(event, other));
  CHECK_OK(orEventSynchronize(event));
  CHECK_OK(orStreamWaitEvent(nullptr, event, 0));
  CHECK_EQUAL(status_of(nullptr), orStreamCaptureStatusNone);
  end(stream);
  CHECK_OK(orEventDestroy(event));
}

TEST(a_capturing_stream_cannot_be_waited_for_or_queried_in_any_mode) {
  const orStream_t stream = test::make_stream();
  for (orStreamCaptureMode mode : modes) {
    for (const auto& call :
         {orStreamSynchronize, orStreamTrySynchronize, orStreamQuery, orStreamDestroy}) {
      begin(stream, mode);
      CHECK_ERROR(call(stream), orErrorStreamCaptureUnsupported);
      check_end(stream, orErrorStreamCaptureInvalidated);
    }
  }
}

TEST(the_device_of_a_capturing_stream_cannot_be_waited_for) {
  const orStream_t stream = test::make_stream(1);
  CHECK_OK(orSetDevice(0));
  for (orStreamCaptureMode mode : modes) {
    begin(stream, mode);
    CHECK_ERROR(orDeviceSynchronizeIndex(1), orErrorStreamCaptureUnsupported);
    check_end(stream, orErrorStreamCaptureInvalidated);
    begin(stream, mode);
    CHECK_ERROR(orDeviceSynchronizeAll(), orErrorStreamCaptureUnsupported);
    check_end(stream, orErrorStreamCaptureInvalidated);
  }
  CHECK_OK(launch_nothing(nullptr));
  begin(stream, orStreamCaptureModeRelaxed);
  CHECK_OK(orDeviceSynchronize());
  end(stream);
  begin(stream);
  CHECK_ERROR(orDeviceSynchronize(), orErrorStreamCaptureUnsupported);
  check_end(stream, orErrorStreamCaptureInvalidated);
}

TEST(copies_from_and_to_unregistered_memory_are_not_captured) {
  const orStream_t stream = test::make_stream();
  const size_t large = size_t{1} << 20;
  char* memory = test::device_malloc(large);
  std::string host(large, '?');
  for (orStreamCaptureMode mode : modes) {
    for (size_t size : {size_t{10}, large}) {
      begin(stream, mode);
      CHECK_ERROR(orMemcpyAsync(memory, host.data(), size, orMemcpyHostToDevice, stream),
                  orErrorStreamCaptureUnsupported);
      check_end(stream, orErrorStreamCaptureInvalidated);
      begin(stream, mode);
      CHECK_ERROR(orMemcpyAsync(host.data(), memory, size, orMemcpyDeviceToHost, stream),
                  orErrorStreamCaptureUnsupported);
      check_end(stream, orErrorStreamCaptureInvalidated);
    }
  }
  CHECK_EQUAL(host, std::string(large, '?'));
}

TEST(an_invalidated_capture_takes_nothing_more) {
  const orStream_t stream = test::make_stream();
  const orStream_t other = test::make_stream();
  const orEvent_t before = test::make_event();
  const orEvent_t after = test::make_event();
  begin(stream, orStreamCaptureModeRelaxed);
  CHECK_OK(orEventRecord(before, stream));
  CHECK_ERROR(orStreamQuery(stream), orErrorStreamCaptureUnsupported);
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusInvalidated);
  CHECK_ERROR(launch_nothing(stream), orErrorStreamCaptureInvalidated);
  CHECK_CONTAINS(orGetLastErrorMessage(), "orStreamQuery");
  CHECK_ERROR(orEventRecord(after, stream), orErrorStreamCaptureInvalidated);
  CHECK_ERROR(orStreamWaitEvent(other, before, 0), orErrorStreamCaptureInvalidated);
  CHECK_EQUAL(status_of(other), orStreamCaptureStatusNone);
  check_end(stream, orErrorStreamCaptureInvalidated);
  CHECK_OK(orEventDestroy(before));
  CHECK_OK(orEventDestroy(after));
}

TEST(a_refused_closure_stays_the_callers) {
  const orStream_t stream = test::make_stream();
  begin(stream, orStreamCaptureModeRelaxed);
  CHECK_ERROR(orStreamQuery(stream), orErrorStreamCaptureUnsupported);
  const auto value = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = value;
  using Closure = std::shared_ptr<int>;
  const orKernel kernel = {"refused", [](void*) { return orSuccess; },
                           [](void* to, void* from) {
                             auto& source = *static_cast<Closure*>(from);
                             new (to) Closure(std::move(source));
                             source.~Closure();
                           },
                           [](void* closure) { static_cast<Closure*>(closure)->~Closure(); }};
  Closure closure = value;
  CHECK_ERROR(orLaunchKernel(&kernel, &closure, sizeof(closure), stream, 0),
              orErrorStreamCaptureInvalidated);
  CHECK(closure == value);
  CHECK_EQUAL(value.use_count(), 2);
  check_end(stream, orErrorStreamCaptureInvalidated);
}

TEST(unsafe_calls_obey_the_table_of_modes) {
  const orStream_t stream = test::make_stream();
  UnsafeCalls calls;
  for (orStreamCaptureMode mode : modes) {
    for (orStreamCaptureMode thread_mode : modes) {
      for (bool is_own : {true, false}) {
        const bool is_relaxed =
            mode == orStreamCaptureModeRelaxed || thread_mode == orStreamCaptureModeRelaxed;
        const bool is_everywhere =
            mode == orStreamCaptureModeGlobal && thread_mode == orStreamCaptureModeGlobal;
        const bool is_forbidden = !is_relaxed && (is_own || is_everywhere);
        for (const auto& [name, call] : calls.all()) {
          begin(stream, mode);
          const auto check = [&, &call = call, &name = name] {
            const orStreamCaptureMode before = exchange_mode(thread_mode);
            const orError_t error = call();
            exchange_mode(before);
            if (error != (is_forbidden ? orErrorStreamCaptureUnsupported : orSuccess)) {
              test::fail(__FILE__, __LINE__, std::string(name) + ": " + orGetErrorName(error));
            }
            if (is_forbidden) CHECK_CONTAINS(orGetLastErrorMessage(), name);
          };
          if (is_own) {
            check();
          } else {
            std::thread(check).join();
          }
          if (is_forbidden) {
            check_end(stream, orErrorStreamCaptureInvalidated);
          } else {
            end(stream);
          }
        }
      }
    }
  }
}

TEST(threads_begin_in_mode_global) {
  CHECK_EQUAL(exchange_mode(orStreamCaptureModeRelaxed), orStreamCaptureModeGlobal);
  std::thread([] {
    CHECK_EQUAL(exchange_mode(orStreamCaptureModeThreadLocal), orStreamCaptureModeGlobal);
    CHECK_EQUAL(exchange_mode(orStreamCaptureModeGlobal), orStreamCaptureModeThreadLocal);
  }).join();
  CHECK_EQUAL(exchange_mode(orStreamCaptureModeGlobal), orStreamCaptureModeRelaxed);
  orStreamCaptureMode bad = static_cast<orStreamCaptureMode>(3);
  CHECK_ERROR(orThreadExchangeStreamCaptureMode(&bad), orErrorInvalidValue);
  CHECK_ERROR(orThreadExchangeStreamCaptureMode(nullptr), orErrorInvalidValue);
}

TEST(one_unsafe_call_invalidates_all_captures_that_forbid_it) {
  const orStream_t first = test::make_stream();
  const orStream_t second = test::make_stream(1);
  const orStream_t relaxed = test::make_stream();
  begin(first);
  begin(second, orStreamCaptureModeThreadLocal);
  begin(relaxed, orStreamCaptureModeRelaxed);
  void* memory = nullptr;
  CHECK_ERROR(orMalloc(&memory, 1), orErrorStreamCaptureUnsupported);
  orGraph_t graph = nullptr;
  CHECK_ERROR(orStreamEndCapture(first, &graph), orErrorStreamCaptureInvalidated);
  CHECK_ERROR(orStreamEndCapture(second, &graph), orErrorStreamCaptureInvalidated);
  end(relaxed);
  CHECK_OK(orMalloc(&memory, 1));
  CHECK_OK(orFree(memory));
}

TEST(a_graph_cannot_be_launched_into_a_capture) {
  const orStream_t stream = test::make_stream();
  begin(stream);
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  orGraphExec_t exec = nullptr;
  CHECK_OK(orGraphInstantiate(&exec, graph, 0));
  begin(stream);
  CHECK_ERROR(orGraphLaunch(exec, stream), orErrorStreamCaptureUnsupported);
  check_end(stream, orErrorStreamCaptureInvalidated);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(blocking_launches_do_not_wait_while_capturing) {
  CHECK_EQUAL(setenv("OPENREG_LAUNCH_BLOCKING", "1", 1), 0);
  const orStream_t stream = test::make_stream();
  int ran = 0;
  begin(stream);
  CHECK_OK(test::launch(stream, "kernel", [&] { return ++ran, orSuccess; }));
  CHECK_OK(orLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &ran));
  end(stream);
  CHECK_EQUAL(ran, 0);
}

TEST(large_closures_are_captured) {
  const orStream_t stream = test::make_stream();
  std::array<char, 3 * OPENREG_MAX_INLINE_CLOSURE_SIZE> bytes;
  bytes.fill('b');
  int sum = 0;
  begin(stream);
  CHECK_OK(test::launch(stream, "large", [&sum, bytes] {
    for (char byte : bytes) sum += byte == 'b';
    return orSuccess;
  }));
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  orGraphExec_t exec = nullptr;
  CHECK_OK(orGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) CHECK_OK(orGraphLaunch(exec, stream));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(sum, 6 * OPENREG_MAX_INLINE_CLOSURE_SIZE);
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(exec));
}

// Each stream waits for the first one, computes, and is waited for, round after round.
TEST(a_chain_of_forks_and_joins_has_one_edge_per_node) {
  for (const size_t stream_count : {1u, 16u}) {
    const size_t rounds = 8000 / stream_count;
    const orStream_t origin = test::make_stream();
    std::vector<orStream_t> streams;
    while (streams.size() < stream_count) streams.push_back(test::make_stream());
    begin(origin);
    for (size_t round = 0; round < rounds; ++round) {
      for (orStream_t stream : streams) {
        follow(stream, origin);
        CHECK_OK(launch_nothing(stream));
        follow(origin, stream);
      }
    }
    orGraph_t graph = nullptr;
    CHECK_OK(orStreamEndCapture(origin, &graph));
    CHECK_EQUAL(count_edges(graph), rounds * stream_count - 1);
    CHECK_OK(orGraphDestroy(graph));
  }
}

// All fork, then all join: nothing orders the nodes of one round, so each follows all of the one
// before.
TEST(a_fan_of_forks_and_joins_has_the_edges_between_its_rounds) {
  constexpr size_t stream_count = 16;
  constexpr size_t rounds = 100;
  const orStream_t origin = test::make_stream();
  std::vector<orStream_t> streams;
  while (streams.size() < stream_count) streams.push_back(test::make_stream());
  begin(origin);
  for (size_t round = 0; round < rounds; ++round) {
    for (orStream_t stream : streams) follow(stream, origin);
    for (orStream_t stream : streams) CHECK_OK(launch_nothing(stream));
    for (orStream_t stream : streams) follow(origin, stream);
  }
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(origin, &graph));
  CHECK_EQUAL(count_edges(graph), stream_count * stream_count * (rounds - 1));
  CHECK_OK(orGraphDestroy(graph));
}

// Random waits for old and new records: the edges are those of the least graph with these paths.
TEST(an_edge_is_made_only_where_no_path_says_the_same) {
  constexpr size_t stream_count = 5;
  constexpr size_t event_count = 4;
  constexpr size_t steps = 1500;
  using Nodes = std::set<size_t>;
  unsigned random = 11;
  const auto pick = [&](size_t count) {
    random = random * 1664525u + 1013904223u;
    return (random >> 16) % count;
  };
  std::vector<orStream_t> streams;
  while (streams.size() < stream_count) streams.push_back(test::make_stream());
  std::vector<orEvent_t> events;
  while (events.size() < event_count) events.push_back(test::make_event());

  std::vector<Nodes> before;                 // per node, all that it follows
  std::vector<Nodes> known(stream_count);    // per stream, all that its next node follows
  std::vector<Nodes> recorded(event_count);  // per event
  begin(streams[0]);
  for (size_t i = 1; i < stream_count; ++i) follow(streams[i], streams[0]);
  for (orEvent_t event : events) CHECK_OK(orEventRecord(event, streams[0]));
  for (size_t step = 0; step < steps; ++step) {
    const size_t stream = pick(stream_count);
    const size_t event = pick(event_count);
    switch (pick(3)) {
      case 0:
        CHECK_OK(orEventRecord(events[event], streams[stream]));
        recorded[event] = known[stream];
        break;
      case 1:
        CHECK_OK(orStreamWaitEvent(streams[stream], events[event], 0));
        known[stream].insert(recorded[event].begin(), recorded[event].end());
        break;
      default:
        CHECK_OK(launch_nothing(streams[stream]));
        before.push_back(known[stream]);
        known[stream].insert(before.size() - 1);
    }
  }
  for (size_t i = 1; i < stream_count; ++i) follow(streams[0], streams[i]);
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(streams[0], &graph));

  Edges expected;
  for (size_t node = 0; node < before.size(); ++node) {
    Nodes direct = before[node];
    for (const size_t earlier : before[node]) {
      for (const size_t other : before[earlier]) direct.erase(other);
    }
    for (const size_t earlier : direct) expected.insert({earlier, node});
  }
  CHECK(expected.size() > before.size());
  CHECK(edges_of(graph) == expected);
  CHECK_EQUAL(count_edges(graph), expected.size());
  CHECK_OK(orGraphDestroy(graph));
  for (orEvent_t event : events) CHECK_OK(orEventDestroy(event));
}

TEST(a_stream_that_two_threads_destroy_and_capture_is_one_of_the_two) {
  // On a busy machine, where a round can take a time slice, the deadline ends the test.
  constexpr int round_count = 20'000;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  static std::atomic<orStream_t> shared{nullptr};
  static std::atomic<bool> is_over{false};
  std::atomic<int> destroyed_round{-1};
  std::thread destroying([&] {
    for (int round = 0; round < round_count; ++round) {
      orStream_t stream = nullptr;
      while ((stream = shared.exchange(nullptr)) == nullptr && !is_over) std::this_thread::yield();
      if (stream == nullptr) return;
      const orError_t error = orStreamDestroy(stream);
      CHECK(error == orSuccess || error == orErrorStreamCaptureUnsupported);
      destroyed_round = round;
    }
  });
  for (int round = 0; round < round_count && std::chrono::steady_clock::now() < deadline; ++round) {
    const orStream_t stream = test::make_stream();
    shared = stream;
    while (shared.load() != nullptr) std::this_thread::yield();
    const orError_t error = orStreamBeginCapture(stream, orStreamCaptureModeRelaxed);
    CHECK(error == orSuccess || error == orErrorInvalidResourceHandle);
    while (destroyed_round != round) std::this_thread::yield();
    if (error != orSuccess) continue;
    // It may have been invalidated by the other thread's call, but it can be ended.
    orGraph_t graph = nullptr;
    const orError_t ended = orStreamEndCapture(stream, &graph);
    CHECK(ended == orSuccess || ended == orErrorStreamCaptureInvalidated);
    CHECK_OK(orGraphDestroy(graph));
    CHECK_OK(orStreamDestroy(stream));
  }
  is_over = true;
  destroying.join();
  CHECK_OK(orDeviceSynchronize());
}
