// Handles: what is not, or no longer, the handle of an object is an error everywhere.
#include <atomic>
#include <functional>
#include <thread>

#include "check.h"

namespace {

// All functions that take an event, with a value in its place.
std::vector<std::pair<const char*, std::function<orError_t(orEvent_t)>>> event_calls() {
  static const orEvent_t good = test::make_event();
  return {
      {"orEventRecord", [](orEvent_t event) { return orEventRecord(event, nullptr); }},
      {"orEventQuery", [](orEvent_t event) { return orEventQuery(event); }},
      {"orEventSynchronize", [](orEvent_t event) { return orEventSynchronize(event); }},
      {"orEventIsComplete",
       [](orEvent_t event) {
         int is_complete = 0;
         return orEventIsComplete(&is_complete, event);
       }},
      {"orEventElapsedTime",
       [](orEvent_t event) {
         float elapsed_ms = 0;
         return orEventElapsedTime(&elapsed_ms, event, good);
       }},
      {"orStreamWaitEvent", [](orEvent_t event) { return orStreamWaitEvent(nullptr, event, 0); }},
      {"orIpcGetEventHandle",
       [](orEvent_t event) {
         orIpcEventHandle_t handle;
         return orIpcGetEventHandle(&handle, event);
       }},
      {"orEventDestroy", [](orEvent_t event) { return orEventDestroy(event); }},
  };
}

std::vector<std::pair<const char*, std::function<orError_t(orStream_t)>>> stream_calls() {
  static const orEvent_t good = test::make_event();
  static const orKernel kernel{"never", [](void*) { return orSuccess; }, nullptr, nullptr};
  return {
      {"orStreamQuery", [](orStream_t stream) { return orStreamQuery(stream); }},
      {"orStreamSynchronize", [](orStream_t stream) { return orStreamSynchronize(stream); }},
      {"orStreamTrySynchronize", [](orStream_t stream) { return orStreamTrySynchronize(stream); }},
      {"orLaunchKernel",
       [](orStream_t stream) { return orLaunchKernel(&kernel, nullptr, 0, stream, 0); }},
      {"orLaunchHostFunc",
       [](orStream_t stream) { return orLaunchHostFunc(stream, [](void*) {}, nullptr); }},
      {"orEventRecord", [](orStream_t stream) { return orEventRecord(good, stream); }},
      {"orStreamWaitEvent", [](orStream_t stream) { return orStreamWaitEvent(stream, good, 0); }},
      {"orMemsetAsync", [](orStream_t stream) { return orMemsetAsync(nullptr, 0, 0, stream); }},
      {"orMemcpyAsync",
       [](orStream_t stream) {
         return orMemcpyAsync(nullptr, nullptr, 0, orMemcpyDefault, stream);
       }},
      {"orStreamGetDevice",
       [](orStream_t stream) {
         int device = 0;
         return orStreamGetDevice(stream, &device);
       }},
      {"orStreamBeginCapture",
       [](orStream_t stream) { return orStreamBeginCapture(stream, orStreamCaptureModeRelaxed); }},
      {"orStreamEndCapture",
       [](orStream_t stream) {
         orGraph_t graph = nullptr;
         return orStreamEndCapture(stream, &graph);
       }},
      {"orStreamIsAlone",
       [](orStream_t stream) {
         int is_alone = 0;
         return orStreamIsAlone(&is_alone, stream);
       }},
      {"orStreamValidate",
       [](orStream_t stream) { return orStreamValidate(reinterpret_cast<uintptr_t>(stream)); }},
      {"orStreamDestroy", [](orStream_t stream) { return orStreamDestroy(stream); }},
  };
}

std::vector<std::pair<const char*, std::function<orError_t(orGraph_t)>>> graph_calls() {
  return {
      {"orGraphGetNodeCount",
       [](orGraph_t graph) {
         size_t count = 0;
         return orGraphGetNodeCount(graph, &count);
       }},
      {"orGraphGetEdgeCount",
       [](orGraph_t graph) {
         size_t count = 0;
         return orGraphGetEdgeCount(graph, &count);
       }},
      {"orGraphDebugDotPrint",
       [](orGraph_t graph) { return orGraphDebugDotPrint(graph, "/dev/null", 0); }},
      {"orGraphInstantiate",
       [](orGraph_t graph) {
         orGraphExec_t exec = nullptr;
         return orGraphInstantiate(&exec, graph, 0);
       }},
      {"orGraphDestroy", [](orGraph_t graph) { return orGraphDestroy(graph); }},
  };
}

std::vector<std::pair<const char*, std::function<orError_t(orGraphExec_t)>>> exec_calls() {
  return {
      {"orGraphLaunch", [](orGraphExec_t exec) { return orGraphLaunch(exec, nullptr); }},
      {"orGraphExecDestroy", [](orGraphExec_t exec) { return orGraphExecDestroy(exec); }},
  };
}

std::vector<std::pair<const char*, std::function<orError_t(orIpcLease_t)>>> lease_calls() {
  return {{"orIpcLeaseEnd", [](orIpcLease_t lease) { return orIpcLeaseEnd(lease); }}};
}

template <typename Handle>
void check_refused(
    Handle handle,
    const std::vector<std::pair<const char*, std::function<orError_t(Handle)>>>& calls) {
  for (const auto& [name, call] : calls) {
    const orError_t error = call(handle);
    if (error == orErrorInvalidResourceHandle) continue;
    test::fail(__FILE__, __LINE__,
               std::string(name) + " returned " + orGetErrorName(error) + " for " +
                   std::to_string(reinterpret_cast<uintptr_t>(handle)));
  }
}

void check_refused_as_everything(const void* value, bool is_stream = false, bool is_event = false,
                                 bool is_graph = false, bool is_exec = false) {
  auto* pointer = const_cast<void*>(value);
  if (!is_stream) check_refused(static_cast<orStream_t>(pointer), stream_calls());
  if (!is_event) check_refused(static_cast<orEvent_t>(pointer), event_calls());
  if (!is_graph) check_refused(static_cast<orGraph_t>(pointer), graph_calls());
  if (!is_exec) check_refused(static_cast<orGraphExec_t>(pointer), exec_calls());
  check_refused(static_cast<orIpcLease_t>(pointer), lease_calls());
}

orGraph_t make_graph() {
  const orStream_t stream = test::make_stream();
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamBeginCapture(stream, orStreamCaptureModeRelaxed));
  CHECK_OK(test::launch(stream, "node", [] { return orSuccess; }));
  CHECK_OK(orStreamEndCapture(stream, &graph));
  CHECK_OK(orStreamDestroy(stream));
  return graph;
}

orGraphExec_t make_exec() {
  const orGraph_t graph = make_graph();
  orGraphExec_t exec = nullptr;
  CHECK_OK(orGraphInstantiate(&exec, graph, 0));
  CHECK_OK(orGraphDestroy(graph));
  return exec;
}

}  // namespace

TEST(the_handle_of_a_destroyed_object_is_refused_by_every_function) {
  const orStream_t stream = test::make_stream();
  CHECK_OK(orStreamDestroy(stream));
  check_refused(stream, stream_calls());
  const orEvent_t event = test::make_event();
  CHECK_OK(orEventRecord(event, nullptr));
  CHECK_OK(orEventDestroy(event));
  check_refused(event, event_calls());
  const orGraph_t graph = make_graph();
  CHECK_OK(orGraphDestroy(graph));
  check_refused(graph, graph_calls());
  const orGraphExec_t exec = make_exec();
  CHECK_OK(orGraphExecDestroy(exec));
  check_refused(exec, exec_calls());
  CHECK_OK(orDeviceSynchronize());
}

TEST(a_stale_handle_is_refused_when_another_object_has_taken_its_place) {
  std::vector<orEvent_t> stale;
  for (int i = 0; i < 1000; ++i) {
    const orEvent_t event = test::make_event();
    for (const orEvent_t earlier : stale) CHECK(event != earlier);
    CHECK_OK(orEventRecord(event, nullptr));
    CHECK_OK(orEventDestroy(event));
    stale.push_back(event);
  }
  const orEvent_t live = test::make_event();
  for (const orEvent_t event : stale) {
    CHECK_ERROR(orEventSynchronize(event), orErrorInvalidResourceHandle);
    CHECK_ERROR(orEventDestroy(event), orErrorInvalidResourceHandle);
  }
  CHECK_OK(orEventRecord(live, nullptr));
  CHECK_OK(orEventSynchronize(live));
  CHECK_OK(orEventDestroy(live));
  CHECK_OK(orDeviceSynchronize());
}

TEST(a_handle_is_refused_as_one_of_another_kind) {
  const orStream_t stream = test::make_stream();
  const orEvent_t event = test::make_event();
  const orGraph_t graph = make_graph();
  const orGraphExec_t exec = make_exec();
  check_refused_as_everything(stream, true);
  check_refused_as_everything(event, false, true);
  check_refused_as_everything(graph, false, false, true);
  check_refused_as_everything(exec, false, false, false, true);
  CHECK_OK(orStreamDestroy(stream));
  CHECK_OK(orEventDestroy(event));
  CHECK_OK(orGraphDestroy(graph));
  CHECK_OK(orGraphExecDestroy(exec));
}

TEST(values_that_are_no_handles_are_refused) {
  int local = 0;
  char* device = test::device_malloc(64);
  char* pinned = test::host_malloc(64);
  // 1 and 2 are CUDA's legacy and per-thread streams.
  for (const uintptr_t value : {uintptr_t{1}, uintptr_t{2}, uintptr_t{3}, uintptr_t{8},
                                uintptr_t{4096}, UINTPTR_MAX, UINTPTR_MAX / 2}) {
    check_refused_as_everything(reinterpret_cast<const void*>(value));
  }
  for (const void* pointer : {static_cast<void*>(&local), static_cast<void*>(device),
                              static_cast<void*>(pinned), static_cast<void*>(&device)}) {
    check_refused_as_everything(pointer);
  }
  // A good handle with one bit flipped.
  const orStream_t stream = test::make_stream();
  const orEvent_t event = test::make_event();
  for (int bit = 0; bit < 64; ++bit) {
    if (bit >= 4 && bit < 10) continue;  // the number of a slot: another object's
    const uintptr_t flip = uintptr_t{1} << bit;
    const auto of = [flip](auto handle) {
      return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(handle) ^ flip);
    };
    CHECK_ERROR(orEventQuery(static_cast<orEvent_t>(of(event))), orErrorInvalidResourceHandle);
    CHECK_ERROR(orStreamQuery(static_cast<orStream_t>(of(stream))), orErrorInvalidResourceHandle);
  }
  CHECK_OK(orEventDestroy(event));
  CHECK_OK(orStreamDestroy(stream));
  CHECK_OK(orFree(device));
  CHECK_OK(orFreeHost(pinned));
}

TEST(the_message_names_what_was_expected_and_what_came) {
  CHECK_ERROR(orEventRecord(reinterpret_cast<orEvent_t>(uintptr_t{0x20}), nullptr),
              orErrorInvalidResourceHandle);
  CHECK_CONTAINS(orGetLastErrorMessage(),
                 "orEventRecord: expected the handle of an event that has not been destroyed, got "
                 "0x20");
  CHECK_ERROR(orStreamQuery(reinterpret_cast<orStream_t>(uintptr_t{1})),
              orErrorInvalidResourceHandle);
  CHECK_CONTAINS(orGetLastErrorMessage(), "the handle of a stream");
}

TEST(objects_may_be_destroyed_while_other_threads_use_them) {
  constexpr int round_count = 300;
  std::atomic<orEvent_t> event{test::make_event()};
  std::atomic<orGraphExec_t> exec{make_exec()};
  std::atomic<orGraph_t> graph{make_graph()};
  std::atomic<bool> is_over{false};
  const auto check = [](orError_t error) {
    if (error != orErrorInvalidResourceHandle && error != orErrorNotReady) CHECK_OK(error);
  };
  std::vector<std::thread> users;
  for (int i = 0; i < 3; ++i) {
    users.emplace_back([&] {
      while (!is_over) {
        check(orEventRecord(event, nullptr));
        check(orEventQuery(event));
        check(orStreamWaitEvent(nullptr, event, 0));
        check(orEventSynchronize(event));
        check(orGraphLaunch(exec, nullptr));
        size_t count = 0;
        check(orGraphGetNodeCount(graph, &count));
      }
    });
  }
  for (int i = 0; i < round_count; ++i) {
    CHECK_OK(orEventDestroy(event.exchange(test::make_event())));
    CHECK_OK(orGraphExecDestroy(exec.exchange(make_exec())));
    CHECK_OK(orGraphDestroy(graph.exchange(make_graph())));
  }
  is_over = true;
  for (std::thread& user : users) user.join();
  CHECK_OK(orDeviceSynchronize());
  CHECK_OK(orEventDestroy(event));
  CHECK_OK(orGraphExecDestroy(exec));
  CHECK_OK(orGraphDestroy(graph));
}
