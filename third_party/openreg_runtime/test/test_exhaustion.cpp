// Exhausted host memory: every function answers with an error, and nothing is lost or hangs.
//
// The allocator of this program fails on demand. Each function is called with an allocator that
// fails at the first allocation, then at the second, and so on, until none fails: once with one
// failure alone, and once with all allocations from there on failing.
#include <dirent.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <iterator>
#include <new>
#include <set>
#include <thread>

#include "check.h"

namespace {

// When allocations of a thread fail.
struct Failing {
  long skipped = -1;  // allocations that still succeed; below 0: none fails
  bool is_lasting = false;
  bool has_failed = false;
};

thread_local constinit Failing failing;

// Whether the next allocation fails.
bool fails() {
  if (failing.skipped < 0) return false;
  if (failing.skipped > 0) return --failing.skipped, false;
  failing.has_failed = true;
  if (!failing.is_lasting) failing.skipped = -1;
  return true;
}

void* allocate(size_t size, size_t alignment) {
  if (fails()) throw std::bad_alloc();
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(size);
  } else {
    memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void fail_from(long skipped, bool is_lasting) { failing = {skipped, is_lasting, false}; }

bool stop_failing() {
  const bool has_failed = failing.has_failed;
  failing = {};
  return has_failed;
}

}  // namespace

void* operator new(size_t size) { return allocate(size, 0); }
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size) { return allocate(size, 0); }
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return fails() ? nullptr : std::malloc(size);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return fails() ? nullptr : std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace {

constexpr long max_allocation_count = 5000;

// What a function does under the failing allocator, and what undoes it after it has succeeded.
struct Call {
  std::string name;
  std::function<orError_t()> make;
  std::function<void()> undo = [] {};
  std::set<orError_t> errors = {orSuccess};  // what it returns with memory
  std::function<void()> recover = [] {};     // what is done after it has failed
};

// Returns how many allocations the call makes.
long check_call(const Call& call, bool is_lasting) {
  for (long skipped = 0; skipped < max_allocation_count; ++skipped) {
    fail_from(skipped, is_lasting);
    const orError_t error = call.make();
    const bool has_failed = stop_failing();
    const auto refuse = [&](const std::string& what) {
      test::fail(__FILE__, __LINE__,
                 call.name + " at allocation " + std::to_string(skipped) + ": " + what);
    };
    if (call.errors.contains(error)) {
      if (error == orSuccess) call.undo();
      if (!has_failed) return skipped;
      continue;
    }
    if (!has_failed) refuse(std::string("returned ") + orGetErrorName(error));
    if (error != orErrorMemoryAllocation) refuse(std::string("returned ") + orGetErrorName(error));
    if (orPeekAtLastError() != error) refuse("the last error is another one");
    if (orGetLastErrorMessage()[0] == '\0') refuse("there is no message");
    call.recover();
  }
  test::fail(__FILE__, __LINE__, call.name + " makes allocations without end");
}

void check_calls(const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    check_call(call, /*is_lasting=*/false);
    check_call(call, /*is_lasting=*/true);
  }
}

int open_file_count() {
  DIR* directory = opendir("/proc/self/fd");
  CHECK(directory != nullptr);
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

void check_no_device_memory_is_left() {
  for (int device : {0, 1}) {
    size_t free_size = 0;
    size_t total_size = 0;
    CHECK_OK(orMemGetInfo(&free_size, &total_size, device));
    CHECK_EQUAL(free_size, total_size);
    // One range again: what was given back has merged.
    void* all = nullptr;
    CHECK_OK(orSetDevice(device));
    CHECK_OK(orMalloc(&all, total_size));
    CHECK_OK(orFree(all));
  }
  CHECK_OK(orSetDevice(0));
}

const orKernel good_kernel{"good", [](void*) { return orSuccess; }, nullptr, nullptr};

// In the middle of others: the free range is a new one, if the memory is watchable.
orError_t free_middle(orError_t (*free_host)(void*)) {
  static void* pinned[3] = {};
  const Failing kept = std::exchange(failing, {});
  for (void*& each : pinned) {
    if (each == nullptr) CHECK_OK(orMallocHost(&each, 1000));
  }
  failing = kept;
  const orError_t error = free_host(pinned[1]);
  if (error != orSuccess) return error;
  const Failing after = std::exchange(failing, {});
  for (const int other : {0, 2}) CHECK_OK(orFreeHost(pinned[other]));
  std::fill(std::begin(pinned), std::end(pinned), nullptr);
  failing = after;
  return error;
}

void add_free_host_calls(std::vector<Call>& calls) {
  calls.push_back({"orFreeHost", [] { return free_middle(orFreeHost); }});
  calls.push_back({"orFreeHostUnused", [] { return free_middle(orFreeHostUnused); }});
}

void add_memory_calls(std::vector<Call>& calls) {
  static void* memory = nullptr;
  static void* pinned = nullptr;
  static char* device = test::device_malloc(100'000);
  static char* host = test::host_malloc(100'000);
  static std::vector<char> plain(100'000);
  calls.push_back(
      {"orMalloc", [] { return orMalloc(&memory, 1000); }, [] { CHECK_OK(orFree(memory)); }});
  calls.push_back({"orMalloc of too much",
                   [] { return orMalloc(&memory, SIZE_MAX / 2); },
                   [] {},
                   {orErrorMemoryAllocation}});
  // In the middle of others: the free range is a new one.
  calls.push_back({"orFree", [] {
                     static void* others[3] = {};
                     const Failing kept = std::exchange(failing, {});
                     for (void*& other : others) {
                       if (other == nullptr) CHECK_OK(orMalloc(&other, 5000));
                     }
                     failing = kept;
                     const orError_t error = orFree(others[1]);
                     if (error != orSuccess) return error;
                     const Failing after = std::exchange(failing, {});
                     for (void*& other : others) {
                       if (&other != &others[1]) CHECK_OK(orFree(other));
                       other = nullptr;
                     }
                     failing = after;
                     return error;
                   }});
  constexpr size_t page = OPENREG_MAPPING_GRANULARITY;
  static char* reserved = nullptr;
  CHECK_OK(orMemAddressReserve(&memory, 3 * page));
  reserved = static_cast<char*>(memory);
  calls.push_back({"orMemAddressReserve", [] { return orMemAddressReserve(&memory, page); },
                   [] { CHECK_OK(orMemAddressFree(memory)); }});
  calls.push_back({"orMemMap", [] { return orMemMap(reserved, page); },
                   [] { CHECK_OK(orMemUnmap(reserved, page)); }});
  calls.push_back({"orMemMap of mapped memory",
                   [] { return orMemMap(device, page); },
                   [] {},
                   {orErrorInvalidValue}});
  // In the middle of others: what is behind becomes a range of its own.
  calls.push_back({"orMemUnmap", [] {
                     const Failing kept = std::exchange(failing, {});
                     if (orPointerAttributes found;
                         orPointerGetAttributes(&found, reserved + page) == orSuccess &&
                         found.type != orMemoryTypeDevice) {
                       CHECK_OK(orMemMap(reserved, 3 * page));
                     }
                     failing = kept;
                     const orError_t error = orMemUnmap(reserved + page, page);
                     if (error != orSuccess) return error;
                     const Failing after = std::exchange(failing, {});
                     CHECK_OK(orMemUnmap(reserved, page));
                     CHECK_OK(orMemUnmap(reserved + 2 * page, page));
                     failing = after;
                     return error;
                   }});
  calls.push_back({"orMemAddressFree",
                   [] { return orMemAddressFree(reserved + page); },
                   [] {},
                   {orErrorInvalidValue}});
  calls.push_back({"orMallocHost", [] { return orMallocHost(&pinned, 1000); },
                   [] { CHECK_OK(orFreeHost(pinned)); }});
  add_free_host_calls(calls);
  calls.push_back({"orHostRegister", [] { return orHostRegister(plain.data(), 100); },
                   [] { CHECK_OK(orHostUnregister(plain.data())); }});
  calls.push_back(
      {"orMemcpy", [] { return orMemcpy(device, plain.data(), 1000, orMemcpyDefault); }});
  calls.push_back(
      {"orMemcpyWithStream",
       [] { return orMemcpyWithStream(device, plain.data(), 1000, orMemcpyDefault, nullptr); }});
  calls.push_back({"orMemcpyAsync of plain memory", [] {
                     return orMemcpyAsync(device, plain.data(), 50'000, orMemcpyDefault, nullptr);
                   }});
  calls.push_back({"orMemcpyAsync of pinned memory",
                   [] { return orMemcpyAsync(host, device, 100'000, orMemcpyDefault, nullptr); }});
  calls.push_back({"orMemcpyAsync to plain memory", [] {
                     return orMemcpyAsync(plain.data(), device, 1000, orMemcpyDefault, nullptr);
                   }});
  calls.push_back({"orMemset", [] { return orMemset(device, 1, 1000); }});
  calls.push_back({"orMemsetAsync", [] { return orMemsetAsync(device, 1, 1000, nullptr); }});
  calls.push_back({"orMemcpy of too much",
                   [] { return orMemcpy(device, plain.data(), 100'001, orMemcpyDefault); },
                   [] {},
                   {orErrorInvalidValue}});
  calls.push_back({"orMemGetInfo", [] {
                     size_t size = 0;
                     return orMemGetInfo(&size, &size, 0);
                   }});
  calls.push_back({"orPointerGetAttributes", [] {
                     orPointerAttributes attributes;
                     return orPointerGetAttributes(&attributes, host);
                   }});
  calls.push_back({"orHostGetKernelPointer", [] {
                     void* pointer = nullptr;
                     return orHostGetKernelPointer(&pointer, host);
                   }});
  calls.push_back({"orDeviceGetAddressRange", [] {
                     void* begin = nullptr;
                     size_t size = 0;
                     return orDeviceGetAddressRange(&begin, &size, 0);
                   }});
  calls.push_back({"orGetKernelOffset", [] {
                     ptrdiff_t offset = 0;
                     return orGetKernelOffset(&offset);
                   }});
}

void add_stream_calls(std::vector<Call>& calls) {
  static orStream_t made = nullptr;
  static orStream_t stream = test::make_stream();
  static orEvent_t event = test::make_event();
  static orEvent_t made_event = nullptr;
  static char large[5000];
  CHECK_OK(orEventRecord(event, stream));
  calls.push_back({"orStreamCreate", [] { return orStreamCreate(&made); },
                   [] { CHECK_OK(orStreamDestroy(made)); }});
  calls.push_back({"orStreamCreateWithPriority",
                   [] { return orStreamCreateWithPriority(&made, 0, -1); },
                   [] { CHECK_OK(orStreamDestroy(made)); }});
  calls.push_back({"the first launch on a stream", [] {
                     static orStream_t fresh = nullptr;
                     const Failing kept = std::exchange(failing, {});
                     if (fresh == nullptr) fresh = test::make_stream();
                     failing = kept;
                     const orError_t error = orLaunchKernel(&good_kernel, nullptr, 0, fresh, 0);
                     const Failing after = std::exchange(failing, {});
                     if (error == orSuccess)
                       CHECK_OK(orStreamDestroy(std::exchange(fresh, nullptr)));
                     failing = after;
                     return error;
                   }});
  calls.push_back(
      {"orLaunchKernel", [] { return orLaunchKernel(&good_kernel, large, 100, stream, 0); }});
  calls.push_back({"orLaunchKernel with a large closure",
                   [] { return orLaunchKernel(&good_kernel, large, sizeof(large), stream, 0); }});
  calls.push_back(
      {"orLaunchHostFunc", [] { return orLaunchHostFunc(stream, [](void*) {}, nullptr); }});
  calls.push_back({"orStreamDestroy of a default stream",
                   [] { return orStreamDestroy(nullptr); },
                   [] {},
                   {orErrorNotPermitted}});
  calls.push_back({"orStreamSynchronize", [] { return orStreamSynchronize(stream); }});
  calls.push_back(
      {"orStreamQuery", [] { return orStreamQuery(stream); }, [] {}, {orSuccess, orErrorNotReady}});
  calls.push_back({"orStreamTrySynchronize",
                   [] { return orStreamTrySynchronize(stream); },
                   [] {},
                   {orSuccess, orErrorNotReady}});
  calls.push_back({"orStreamIsAlone", [] {
                     int is_alone = 0;
                     return orStreamIsAlone(&is_alone, stream);
                   }});
  calls.push_back({"orStreamValidate",
                   [] { return orStreamValidate(1); },
                   [] {},
                   {orErrorInvalidResourceHandle}});
  calls.push_back({"orStreamHasEnded", [] {
                     int has_ended = 0;
                     return orStreamHasEnded(&has_ended, stream);
                   }});
  calls.push_back({"orStreamGetPriority", [] {
                     int priority = 0;
                     return orStreamGetPriority(stream, &priority);
                   }});
  calls.push_back({"orStreamGetFlags", [] {
                     unsigned flags = 0;
                     return orStreamGetFlags(stream, &flags);
                   }});
  calls.push_back({"orStreamGetId", [] {
                     unsigned long long id = 0;
                     return orStreamGetId(stream, &id);
                   }});
  calls.push_back({"orGetLastErrorRecord", [] {
                     orErrorRecord record{};
                     return orGetLastErrorRecord(&record);
                   }});
  calls.push_back({"orStreamGetById", [] { return orStreamGetById(&made, 0, 0); }});
  calls.push_back({"orStreamGetById of none",
                   [] { return orStreamGetById(&made, 0, 1u << 30); },
                   [] {},
                   {orErrorInvalidResourceHandle}});
  calls.push_back({"orGetDefaultStream", [] { return orGetDefaultStream(&made, 0); }});
  calls.push_back({"orStreamGetDevice of no stream",
                   [] {
                     int device = 0;
                     return orStreamGetDevice(reinterpret_cast<orStream_t>(&device), &device);
                   },
                   [] {},
                   {orErrorInvalidResourceHandle}});
  calls.push_back({"orEventCreate", [] { return orEventCreate(&made_event); },
                   [] { CHECK_OK(orEventDestroy(made_event)); }});
  calls.push_back({"orEventCreateWithFlags",
                   [] {
                     return orEventCreateWithFlags(&made_event,
                                                   orEventInterprocess | orEventDisableTiming);
                   },
                   [] { CHECK_OK(orEventDestroy(made_event)); }});
  calls.push_back({"orEventRecord", [] { return orEventRecord(event, stream); }});
  calls.push_back({"orStreamWaitEvent", [] { return orStreamWaitEvent(stream, event, 0); }});
  calls.push_back({"orEventSynchronize", [] { return orEventSynchronize(event); }});
  calls.push_back(
      {"orEventQuery", [] { return orEventQuery(event); }, [] {}, {orSuccess, orErrorNotReady}});
  calls.push_back({"orEventIsComplete", [] {
                     int is_complete = 0;
                     return orEventIsComplete(&is_complete, event);
                   }});
  calls.push_back({"orEventElapsedTime",
                   [] {
                     float elapsed_ms = 0;
                     return orEventElapsedTime(&elapsed_ms, event, event);
                   },
                   [] {},
                   {orSuccess, orErrorNotReady}});
  calls.push_back({"orEventDestroy of no event",
                   [] { return orEventDestroy(reinterpret_cast<orEvent_t>(large)); },
                   [] {},
                   {orErrorInvalidResourceHandle}});
  calls.push_back({"orSetIdleFunction",
                   [] { return orSetIdleFunction(nullptr); },
                   [] {},
                   {orErrorNotPermitted}});
}

void add_device_calls(std::vector<Call>& calls) {
  static int value = 0;
  static orDeviceProp properties;
  calls.push_back({"orGetDeviceCount", [] { return orGetDeviceCount(&value); }});
  calls.push_back({"orInit", [] { return orInit(); }});
  calls.push_back({"orGetDevice", [] { return orGetDevice(&value); }});
  calls.push_back({"orDeviceGetStreamPriorityRange",
                   [] { return orDeviceGetStreamPriorityRange(&value, &value); }});
  calls.push_back({"orIsForkedChild", [] { return orIsForkedChild(&value); }});
  calls.push_back(
      {"orSetDeviceCreatedFunction", [] { return orSetDeviceCreatedFunction(nullptr); }});
  calls.push_back({"orSetWaitCheck", [] { return orSetWaitCheck(nullptr); }});
  calls.push_back({"orGetSettingCount", [] { return orGetSettingCount(&value); }});
  calls.push_back({"orAreSettingsRead", [] { return orAreSettingsRead(&value); }});
  calls.push_back({"orGetSettingSize", [] {
                     size_t size = 0;
                     return orGetSettingSize(&size, orSettingIndex_OPENREG_QUEUE_MEMORY);
                   }});
  calls.push_back({"orSetDevice", [] { return orSetDevice(0); }});
  calls.push_back(
      {"orSetDevice of none", [] { return orSetDevice(77); }, [] {}, {orErrorInvalidDevice}});
  calls.push_back({"orGetDeviceProperties", [] { return orGetDeviceProperties(&properties, 0); }});
  calls.push_back({"orDeviceIsActive", [] { return orDeviceIsActive(0, &value); }});
  calls.push_back({"orDeviceIsBusy", [] { return orDeviceIsBusy(0, &value); }});
  calls.push_back({"orDeviceSynchronize", [] { return orDeviceSynchronize(); }});
  calls.push_back({"orDeviceSynchronizeIndex", [] { return orDeviceSynchronizeIndex(1); }});
  calls.push_back({"orDeviceSynchronizeAll", [] { return orDeviceSynchronizeAll(); }});
  calls.push_back({"orDeviceTakeErrorAll", [] { return orDeviceTakeErrorAll(1000); }});
  calls.push_back({"orDeviceCanAccessPeer", [] { return orDeviceCanAccessPeer(&value, 0, 1); }});
  calls.push_back({"orGetSetting", [] {
                     orSetting setting;
                     return orGetSetting(&setting, 0);
                   }});
  calls.push_back({"orGetSettingName", [] {
                     const char* name = nullptr;
                     return orGetSettingName(&name, 0);
                   }});
  calls.push_back({"orDeclareSetting", [] {
                     const orSetting setting = {"TEST_SWITCH",    "0",     "0 or 1",
                                                "For this test.", nullptr, nullptr};
                     return orDeclareSetting(&value, &setting, "0 1");
                   }});
  calls.push_back({"orSetSettingSource", [] { return orSetSettingSource(nullptr); }});
  calls.push_back({"orCheckSettings", [] { return orCheckSettings(); }});
  calls.push_back({"orReviewSettings",
                   [] { return orReviewSettings(&value, [](void*, const char*) {}, nullptr); }});
  calls.push_back({"orSetSchedule", [] { return orSetSchedule("free"); }});
  calls.push_back({"orGetSchedule", [] {
                     char text[OPENREG_SCHEDULE_SIZE];
                     return orGetSchedule(text, sizeof(text));
                   }});
}

void add_graph_calls(std::vector<Call>& calls) {
  static orStream_t stream = test::make_stream();
  static orStream_t other = test::make_stream();
  static orEvent_t event = test::make_event();
  static orGraph_t graph = nullptr;
  static orGraph_t made = nullptr;
  static orGraphExec_t exec = nullptr;
  static orGraphExec_t made_exec = nullptr;
  // A capture that may fail in the middle, but ends.
  const auto capture = [](orGraph_t* captured) {
    orError_t error = orStreamBeginCapture(stream, orStreamCaptureModeRelaxed);
    if (error != orSuccess) return error;
    char closure[100] = {};
    if (error == orSuccess)
      error = orLaunchKernel(&good_kernel, closure, sizeof(closure), stream, 0);
    if (error == orSuccess) error = orEventRecord(event, stream);
    if (error == orSuccess) error = orStreamWaitEvent(other, event, 0);
    if (error == orSuccess) error = orLaunchKernel(&good_kernel, closure, 8, other, 0);
    if (error == orSuccess) error = orLaunchKernel(&good_kernel, closure, 8, stream, 0);
    if (error == orSuccess) error = orEventRecord(event, other);
    if (error == orSuccess) error = orStreamWaitEvent(stream, event, 0);
    if (error == orSuccess) error = orStreamEndCapture(stream, captured);
    return error;
  };
  const auto end_capture = [] {
    orStreamCaptureStatus status;
    CHECK_OK(orStreamIsCapturing(stream, &status));
    orGraph_t rest = nullptr;
    if (status != orStreamCaptureStatusNone && orStreamEndCapture(stream, &rest) == orSuccess) {
      CHECK_OK(orGraphDestroy(rest));
    }
    for (const orStream_t ended : {stream, other}) {
      CHECK_OK(orStreamIsCapturing(ended, &status));
      CHECK_EQUAL(status, orStreamCaptureStatusNone);
    }
  };
  CHECK_OK(capture(&graph));
  CHECK_OK(orGraphInstantiate(&exec, graph, 0));
  calls.push_back({"a capture",
                   [capture] { return capture(&made); },
                   [] { CHECK_OK(orGraphDestroy(made)); },
                   {orSuccess},
                   end_capture});
  calls.push_back({"orGraphInstantiate", [] { return orGraphInstantiate(&made_exec, graph, 0); },
                   [] { CHECK_OK(orGraphExecDestroy(made_exec)); }});
  calls.push_back({"orGraphLaunch", [] { return orGraphLaunch(exec, stream); }});
  calls.push_back({"the first orGraphLaunch", [] {
                     static orGraphExec_t fresh = nullptr;
                     const Failing kept = std::exchange(failing, {});
                     if (fresh == nullptr) CHECK_OK(orGraphInstantiate(&fresh, graph, 0));
                     failing = kept;
                     const orError_t error = orGraphLaunch(fresh, stream);
                     const Failing after = std::exchange(failing, {});
                     if (error == orSuccess) {
                       CHECK_OK(orGraphExecDestroy(std::exchange(fresh, nullptr)));
                     }
                     failing = after;
                     return error;
                   }});
  calls.push_back({"orGraphGetEdgeCount", [] {
                     size_t count = 0;
                     return orGraphGetEdgeCount(graph, &count);
                   }});
  calls.push_back({"orGraphGetNodeCount", [] {
                     size_t count = 0;
                     return orGraphGetNodeCount(graph, &count);
                   }});
  calls.push_back({"orGraphDebugDotPrint",
                   [] { return orGraphDebugDotPrint(graph, "/dev/null", 0); },
                   [] {},
                   // A stream whose buffer has no memory says so by a bad state.
                   {orSuccess, orErrorOperatingSystem}});
  calls.push_back({"orGraphDestroy of no graph",
                   [] { return orGraphDestroy(reinterpret_cast<orGraph_t>(uintptr_t{8})); },
                   [] {},
                   {orErrorInvalidResourceHandle}});
  calls.push_back({"orThreadExchangeStreamCaptureMode", [] {
                     orStreamCaptureMode mode = orStreamCaptureModeGlobal;
                     return orThreadExchangeStreamCaptureMode(&mode);
                   }});
  calls.push_back({"orStreamGetCaptureInfo", [] {
                     orStreamCaptureStatus status;
                     return orStreamGetCaptureInfo(stream, &status, nullptr);
                   }});
}

void add_trace_calls(std::vector<Call>& calls) {
  calls.push_back({"orTraceStart", [] { return orTraceStart(orActivityAll); }});
  calls.push_back({"orRangePush",
                   [] { return orRangePush("a name that is not a short one", nullptr); },
                   [] { CHECK_OK(orRangePop(nullptr)); }});
  calls.push_back(
      {"orRangePop of none", [] { return orRangePop(nullptr); }, [] {}, {orErrorInvalidValue}});
  calls.push_back({"orRangeStart", [] {
                     static uint64_t id = 0;
                     const orError_t error = orRangeStart("another name that is not short", &id);
                     return error == orSuccess ? orRangeEnd(id) : error;
                   }});
  calls.push_back({"orMark", [] { return orMark("a mark with a name that is not a short one"); }});
  calls.push_back({"orTracePushExternalId", [] { return orTracePushExternalId(5); },
                   [] {
                     uint64_t id = 0;
                     CHECK_OK(orTracePopExternalId(&id));
                   }});
  calls.push_back(
      {"a traced launch", [] { return orLaunchKernel(&good_kernel, nullptr, 0, nullptr, 0); }});
  calls.push_back({"a traced copy", [] {
                     char from = 0;
                     char to = 0;
                     return orMemcpy(&to, &from, 1, orMemcpyHostToHost);
                   }});
  calls.push_back({"orTraceRecordWork", [] {
                     orActivityRecord work = {};
                     work.kind = orActivityKernel;
                     work.name = "work";
                     return orTraceRecordWork(nullptr, "call", &work);
                   }});
  calls.push_back({"orTraceConsume",
                   [] { return orTraceConsume([](const orActivityRecord*, void*) {}, nullptr); }});
  calls.push_back({"orTraceIsOn", [] {
                     int is_on = 0;
                     return orTraceIsOn(&is_on);
                   }});
  calls.push_back({"orTraceGetTime", [] {
                     int64_t now_ns = 0;
                     return orTraceGetTime(&now_ns);
                   }});
  calls.push_back({"orTraceStop", [] { return orTraceStop(); }});
}

void add_watch_and_ipc_calls(std::vector<Call>& calls) {
  static unsigned long long number = 0;
  static orIpcMemHandle_t memory_handle;
  static orIpcEventHandle_t event_handle;
  static orIpcLeaseHandle_t lease_handle;
  static void* pinned = nullptr;
  static char* device = test::device_malloc(100);
  static orEvent_t shared = nullptr;
  CHECK_OK(orEventCreateWithFlags(&shared, orEventInterprocess | orEventDisableTiming));
  CHECK_OK(orWatchStart());
  static char* watched = test::host_malloc(5000);
  const orWatchObserver observer = [](void*, const void*, int) { return 1; };
  calls.push_back({"orMallocHost of watchable memory", [] { return orMallocHost(&pinned, 1000); },
                   [] { CHECK_OK(orFreeHost(pinned)); }});
  add_free_host_calls(calls);
  calls.push_back({"orWatchAdd",
                   [observer] { return orWatchAdd(&number, watched, 5000, 1, observer, nullptr); },
                   [] { CHECK_OK(orWatchRemove(number)); }});
  calls.push_back({"orWatchRemove of none",
                   [] { return orWatchRemove(123456); },
                   [] {},
                   {orErrorInvalidValue}});
  calls.push_back({"orWatchRearm", [] { return orWatchRearm(); }});
  calls.push_back({"orWatchGetCounts", [] {
                     orWatchCounts counts;
                     return orWatchGetCounts(&counts);
                   }});
  static uintptr_t fault_context = 0;  // another one in each call, which then needs memory
  static const orFaultFn leave_fault = [](void*, const orFault*) { return 0; };
  calls.push_back(
      {"orFaultHandlerAdd",
       [] { return orFaultHandlerAdd(leave_fault, reinterpret_cast<void*>(++fault_context)); },
       [] {
         CHECK_OK(orFaultHandlerRemove(leave_fault, reinterpret_cast<void*>(fault_context)));
       }});
  calls.push_back({"orFaultHandlerRemove of none",
                   [] { return orFaultHandlerRemove(leave_fault, nullptr); },
                   [] {},
                   {orErrorInvalidValue}});
  calls.push_back({"orIpcGetMemHandle", [] { return orIpcGetMemHandle(&memory_handle, device); }});
  calls.push_back(
      {"orIpcGetEventHandle", [] { return orIpcGetEventHandle(&event_handle, shared); }});
  calls.push_back(
      {"orEventRecord of a shared event", [] { return orEventRecord(shared, nullptr); }});
  calls.push_back({"orIpcOpenMemHandle of its own",
                   [] {
                     void* pointer = nullptr;
                     return orIpcOpenMemHandle(&pointer, memory_handle, 0);
                   },
                   [] {},
                   {orErrorNotPermitted, orErrorInvalidResourceHandle}});
  calls.push_back({"orIpcOpenEventHandle of its own",
                   [] {
                     orEvent_t event = nullptr;
                     return orIpcOpenEventHandle(&event, event_handle);
                   },
                   [] {},
                   {orErrorNotPermitted, orErrorInvalidResourceHandle}});
  calls.push_back({"orIpcCloseMemHandle of none",
                   [] { return orIpcCloseMemHandle(device); },
                   [] {},
                   {orErrorInvalidValue}});
  calls.push_back({"orIpcLeaseEnd of none",
                   [] { return orIpcLeaseEnd(reinterpret_cast<orIpcLease_t>(device)); },
                   [] {},
                   {orErrorInvalidResourceHandle}});
  calls.push_back({"orWatchStop", [] {
                     const orError_t error = orWatchStop();
                     return error == orSuccess ? orWatchStart() : error;
                   }});
  calls.push_back({"orIpcLeaseGrant", [] { return orIpcLeaseGrant(&number, &lease_handle); },
                   [] { CHECK_OK(orIpcLeaseRevoke(number)); }});
  calls.push_back({"orIpcLeaseFind",
                   [] { return orIpcLeaseFind(&number, lease_handle); },
                   [] {},
                   {orSuccess, orErrorInvalidResourceHandle}});
  calls.push_back({"orIpcLeaseTake of its own",
                   [] {
                     orIpcLease_t lease = nullptr;
                     return orIpcLeaseTake(&lease, lease_handle);
                   },
                   [] {},
                   {orErrorNotPermitted, orErrorInvalidResourceHandle}});
  calls.push_back({"orIpcLeaseCollect",
                   [] { return orIpcLeaseCollect([](unsigned long long, void*) {}, nullptr, 1); }});
}

}  // namespace

TEST(every_function_survives_a_failing_allocator) {
  std::vector<Call> calls;
  add_memory_calls(calls);
  add_stream_calls(calls);
  add_device_calls(calls);
  add_graph_calls(calls);
  add_watch_and_ipc_calls(calls);
  add_trace_calls(calls);
  check_calls(calls);
  const int file_count = open_file_count();
  check_calls(calls);
  CHECK_EQUAL(open_file_count(), file_count);
  CHECK_OK(orDeviceSynchronizeAll());
}

TEST(a_scheduled_process_survives_a_failing_allocator) {
  for (const char* schedule : {"lazy", "eager", "11"}) {
    CHECK_OK(orSetSchedule(schedule));
    std::vector<Call> calls;
    add_stream_calls(calls);
    add_graph_calls(calls);
    check_calls(calls);
    CHECK_OK(orDeviceSynchronizeAll());
  }
}

TEST(no_device_memory_is_lost) {
  std::vector<void*> held;
  // Frees and allocates around ranges that are in use, with an allocator that fails at random.
  unsigned random = 1;
  for (int i = 0; i < 20'000; ++i) {
    random = random * 1664525u + 1013904223u;
    fail_from(random >> 30, (random >> 29 & 1) != 0);
    void* memory = nullptr;
    const size_t place = random >> 8;
    if (held.size() < 50 || (random >> 16 & 1) != 0) {
      const orError_t error = orMalloc(&memory, 1 + (random >> 12) % 20'000);
      stop_failing();
      if (error == orSuccess) {
        held.push_back(memory);
      } else {
        CHECK_EQUAL(error, orErrorMemoryAllocation);
      }
    } else {
      void*& freed = held[place % held.size()];
      const orError_t error = orFree(freed);
      stop_failing();
      if (error == orSuccess) {
        std::swap(freed, held.back());
        held.pop_back();
      } else {
        CHECK_EQUAL(error, orErrorMemoryAllocation);
      }
    }
  }
  for (void* memory : held) CHECK_OK(orFree(memory));
  check_no_device_memory_is_left();
}

TEST(the_first_use_may_fail_and_be_tried_again) {
  for (const bool is_lasting : {false, true}) {
    test::check_child([is_lasting] {
      const int file_count = open_file_count();
      long skipped = 0;
      for (;; ++skipped) {
        void* memory = nullptr;
        fail_from(skipped, is_lasting);
        const orError_t error = orMalloc(&memory, 100);
        const bool has_failed = stop_failing();
        if (error == orSuccess) {
          CHECK_OK(orFree(memory));
          if (!has_failed) break;
        } else {
          CHECK_EQUAL(error, orErrorMemoryAllocation);
          int is_active = 0;
          CHECK_OK(orDeviceIsActive(0, &is_active));
          CHECK_EQUAL(open_file_count(), file_count + is_active);
        }
        // What has not failed need not be tried again: a device is created once.
        if (error == orSuccess) break;
      }
      CHECK(skipped > 5);
      CHECK_OK(orMemset(test::device_malloc(100), 0, 100));
    });
  }
}

TEST(a_kernel_that_fails_without_memory_fails_its_stream) {
  struct Closure {
    long skipped;
    bool is_lasting;
    bool* has_failed;
    orError_t code;
  };
  static const orKernel kernel{
      "a kernel with a name that is not a short one",
      [](void* pointer) {
        const Closure& closure = *static_cast<Closure*>(pointer);
        fail_from(closure.skipped, closure.is_lasting);
        orSetKernelError("an error text that is too long for the string object itself", 42);
        return closure.code;
      },
      nullptr, [](void* pointer) { *static_cast<Closure*>(pointer)->has_failed = stop_failing(); }};
  const orStream_t stream = test::make_stream();
  for (const bool is_lasting : {false, true}) {
    for (const orError_t code : {orErrorInvalidValue, orErrorNotSupported}) {
      for (long skipped = 0;; ++skipped) {
        bool has_failed = false;
        Closure closure{skipped, is_lasting, &has_failed, code};
        CHECK_OK(orLaunchKernel(&kernel, &closure, sizeof(closure), stream, 0));
        CHECK_ERROR(orStreamSynchronize(stream), code);
        CHECK_CONTAINS(orGetLastErrorMessage(), "fail");
        CHECK_OK(orStreamSynchronize(stream));
        if (!has_failed) {
          CHECK_CONTAINS(orGetLastErrorMessage(), "too long for the string");
          break;
        }
      }
    }
  }
  bool ran = false;
  CHECK_OK(test::launch(stream, "runs", [&ran] { return ran = true, orSuccess; }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(ran);
}

TEST(a_host_function_that_fails_without_memory_fails_its_stream) {
  static bool has_failed = false;
  const orStream_t stream = test::make_stream();
  for (static long skipped = 0;; ++skipped) {
    CHECK_OK(orLaunchHostFunc(
        stream,
        [](void*) {
          fail_from(skipped, false);
          orSetKernelError("an error text that is too long for the string object itself", 1);
        },
        nullptr));
    // Dropped, so only its end runs.
    static const orKernel end{"end", [](void*) { return orSuccess; }, nullptr,
                              [](void*) { has_failed = stop_failing(); }};
    CHECK_OK(orLaunchKernel(&end, nullptr, 0, stream, 0));
    CHECK_ERROR(orStreamSynchronize(stream), orErrorLaunchFailure);
    if (!has_failed) break;
  }
}

TEST(a_failure_is_reported_without_memory) {
  const orStream_t stream = test::make_stream();
  for (long skipped = 0;; ++skipped) {
    CHECK_OK(
        test::launch_failure(stream, orErrorNotSupported, "a text that is not a short one", 7));
    while (orStreamQuery(stream) == orErrorNotReady) std::this_thread::yield();
    CHECK_OK(
        test::launch_failure(stream, orErrorNotSupported, "a text that is not a short one", 7));
    fail_from(skipped, true);
    const orError_t error = orStreamSynchronize(stream);
    if (!stop_failing()) break;
    if (error == orErrorMemoryAllocation) {
      CHECK_ERROR(orStreamSynchronize(stream), orErrorNotSupported);
    } else {
      CHECK_ERROR(error, orErrorNotSupported);
      CHECK_EQUAL(orGetLastErrorTag(), 7);
    }
  }
}
