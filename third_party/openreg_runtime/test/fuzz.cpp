// A fuzzer of the C functions: random calls from eight threads, with handles that are valid, stale,
// of another kind, null or any number, sizes around every limit, during captures. Nothing may
// crash, hang or leak, no closure may get lost, and no call may end with an unknown error.
//
//   fuzz [calls] [seed]
//
// Not random, as no library can answer for it: the memory behind a valid pointer is as large as the
// call says, and pinned memory is not freed while another thread or a graph may use it.
#define OPENREG_TEST_WITHOUT_MAIN
#include <dirent.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "check.h"

// User memory: copies of several streams on one address race, as the calls are random. What the
// library itself does is checked.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:run_copy\nrace:run_staged_copy\nrace:run_fill\nrace:copy_and_wait\n"
         "race:discard_pages\nrace:Arena::clear\nrace:touch_own_memory\n";
}

namespace {

constexpr int thread_count = 8;
#if defined(__SANITIZE_THREAD__)
constexpr long default_call_count = 10'000;  // a call may take milliseconds
constexpr long full_call_count = 30'000;
// A copy that races reports each of its addresses, also if the race is suppressed.
constexpr auto hang_after = std::chrono::minutes(10);
#else
constexpr long default_call_count = 30'000;
constexpr long full_call_count = 1'000'000;
constexpr auto hang_after = std::chrono::minutes(1);
#endif
constexpr size_t plain_size = size_t{1} << 20;

// The largest size of those that exist. TSan takes a millisecond for each 8 bytes that race, though
// it suppresses the report: two copies of a mebibyte are minutes, in which nothing gets on.
#if defined(__SANITIZE_THREAD__)
constexpr size_t max_size = 8;
#else
constexpr size_t max_size = plain_size;
#endif

constexpr size_t place_count = 12;

std::atomic<long> launched{0};
std::atomic<long> destroyed{0};
std::atomic<long> calls_left{0};
std::atomic<long> made{0};
std::atomic<long> succeeded{0};
std::array<std::atomic<long>, thread_count> progress{};
std::array<std::atomic<const char*>, thread_count> current_calls{};

// A closure that counts its end.
struct Token {
  int behavior;
};

void move_token(void* to, void* from) { *static_cast<Token*>(to) = *static_cast<Token*>(from); }
void destroy_token(void*) { ++destroyed; }

orError_t run_token(void* closure) {
  switch (static_cast<const Token*>(closure)->behavior) {
    case 0:
      orSetKernelError("fuzzed", 3);
      return orErrorNotSupported;
    case 1:
      throw std::runtime_error("fuzzed");
    default:
      return orSuccess;
  }
}

void describe_token(const void*, orActivityRecord* record) { record->bytes = 1; }

const orKernel token_kernel{"token", run_token, move_token, destroy_token, describe_token};
const orKernel nameless_kernel{nullptr, run_token, move_token, destroy_token};
const orKernel empty_kernel{"empty", nullptr, move_token, destroy_token};

// Handles of one kind that all threads use and replace, and some that are stale.
template <typename Handle>
class Places {
 public:
  Handle live(size_t i) const { return live_[i % place_count].load(); }
  Handle stale(size_t i) const { return stale_[i % place_count].load(); }
  Handle replace(size_t i, Handle handle) { return live_[i % place_count].exchange(handle); }
  void bury(size_t i, Handle handle) { stale_[i % place_count].store(handle); }

 private:
  std::array<std::atomic<Handle>, place_count> live_{};
  std::array<std::atomic<Handle>, place_count> stale_{};
};

struct Shared {
  Places<orStream_t> streams;
  Places<orEvent_t> events;
  Places<orGraph_t> graphs;
  Places<orGraphExec_t> execs;
  Places<char*> memory;
  char* pinned = test::host_malloc(plain_size);  // never freed while the threads run
  std::vector<char> plain = std::vector<char>(plain_size);
};

void check_known(const char* call, orError_t error) {
  const bool is_known = std::strcmp(orGetErrorName(error), "unrecognized error code") != 0;
  if (is_known && error != orErrorUnknown && error != orErrorOperatingSystem) return;
  test::fail(__FILE__, __LINE__,
             std::string(call) + " returned " + orGetErrorName(error) + " (" +
                 orGetLastErrorMessage() + ")");
}

// Asks until it is so, and fails if that takes too long.
template <typename IsSo>
void wait_until(const char* what, IsSo is_so) {
  const auto begin = std::chrono::steady_clock::now();
  while (!is_so()) {
    if (std::chrono::steady_clock::now() - begin > hang_after) {
      test::fail(__FILE__, __LINE__,
                 std::string("not within a minute: ") + what + "; " + orGetLastErrorMessage());
    }
    std::this_thread::yield();
  }
}

class Fuzzer {
 public:
  Fuzzer(Shared& shared, int number, unsigned seed)
      : shared_(shared), number_(number), random_(seed) {
    CHECK_OK(orStreamCreate(&own_stream_));
  }
  Fuzzer(const Fuzzer&) = delete;
  Fuzzer& operator=(const Fuzzer&) = delete;

  void run() {
    while (calls_left.fetch_sub(1) > 0) {
      call();
      ++progress[static_cast<size_t>(number_)];
    }
    end();
  }

 private:
  size_t pick(size_t count) { return random_() % count; }
  bool one_in(size_t count) { return pick(count) == 0; }

  // Notes what the thread is in, for the report of a hang.
  void note(const char* name) {
    current_calls[static_cast<size_t>(number_)].store(name, std::memory_order_relaxed);
  }

#define CALL(call) (note(#call), check((#call), (call)))

  orError_t check(const char* call, orError_t error) {
    check_known(call, error);
    ++call_count_;
    if (error == orSuccess || error == orErrorNotReady) ++success_count_;
    return error;
  }

  template <typename Handle>
  Handle any_number() {
    switch (pick(4)) {
      case 0:
        return reinterpret_cast<Handle>(uintptr_t{pick(10)});
      case 1:
        return reinterpret_cast<Handle>(&shared_);
      case 2:  // a good one with a wrong bit
        return reinterpret_cast<Handle>(
            reinterpret_cast<uintptr_t>(shared_.streams.live(pick(place_count))) ^ uintptr_t{1}
                                                                                       << pick(64));
      default:
        return reinterpret_cast<Handle>(uintptr_t{random_()});
    }
  }

  template <typename Handle>
  Handle any(const Places<Handle>& places) {
    switch (pick(20)) {
      case 0:
        return nullptr;
      case 1:
      case 2:
        return places.stale(pick(place_count));
      case 3:
        return any_number<Handle>();
      case 4: {
        const std::array<void*, 5> others = {
            shared_.streams.live(pick(place_count)), shared_.events.live(pick(place_count)),
            shared_.graphs.live(pick(place_count)), shared_.execs.live(pick(place_count)),
            shared_.memory.live(pick(place_count))};
        return static_cast<Handle>(others[pick(others.size())]);
      }
      default:
        return places.live(pick(place_count));
    }
  }

  // Never a stream where the calling thread's later wait could hang: any is fine.
  orStream_t stream() { return any(shared_.streams); }
  orEvent_t event() { return any(shared_.events); }

  size_t size() {
    static constexpr std::array<size_t, 22> sizes = {0,
                                                     1,
                                                     2,
                                                     63,
                                                     64,
                                                     65,
                                                     511,
                                                     512,
                                                     513,
                                                     4095,
                                                     4096,
                                                     4097,
                                                     65535,
                                                     65536,
                                                     65537,
                                                     plain_size,
                                                     99999,
                                                     12345,
                                                     SIZE_MAX,
                                                     SIZE_MAX - 1,
                                                     SIZE_MAX / 2,
                                                     SIZE_MAX - 511};
    const size_t size = sizes[pick(sizes.size())];
    return size > max_size && size <= plain_size ? max_size : size;
  }

  template <typename T>
  T* or_null(T* pointer) {
    return one_in(30) ? nullptr : pointer;
  }

  // Device memory, live or not, inside or at its start; or what is no device memory.
  char* device_pointer() {
    if (one_in(15)) return nullptr;
    char* memory = one_in(10) ? shared_.memory.stale(pick(place_count))
                              : shared_.memory.live(pick(place_count));
    return memory == nullptr ? nullptr : memory + (one_in(3) ? pick(600) : 0);
  }

  void call() {
    switch (pick(16)) {
      case 0:
      case 1:
      case 2:
        return launch();
      case 3:
      case 4:
        return use_event();
      case 5:
        return use_stream();
      case 6:
        return copy();
      case 7:
        return allocate();
      case 8:
        return capture();
      case 9:
        return use_graph();
      case 10:
        return replace();
      case 11:
        return use_device();
      case 12:
        return trace();
      case 13:
        return watch();
      case 14:
        return share();
      default:
        return use_settings();
    }
  }

  void launch() {
    Token token{static_cast<int>(pick(200))};
    const orKernel* kernel = &token_kernel;
    if (one_in(50)) kernel = one_in(2) ? &nameless_kernel : &empty_kernel;
    if (one_in(50)) kernel = nullptr;
    size_t closure_size = sizeof(token);
    if (one_in(50)) closure_size = SIZE_MAX - pick(100);
    alignas(OPENREG_CLOSURE_ALIGNMENT) std::array<char, 6000> large{};
    void* closure = &token;
    if (one_in(10)) {
      std::memcpy(large.data(), &token, sizeof(token));
      closure = large.data();
      closure_size = closure_size == sizeof(token) ? large.size() : closure_size;
    }
    if (one_in(6)) {
      CALL(orLaunchHostFunc(stream(), or_null(&host_function), nullptr));
      return;
    }
    const orStream_t target = stream();
    if (one_in(40)) closure = nullptr;
    // Counted first: it may end before the call returns.
    ++launched;
    if (CALL(orLaunchKernel(kernel, closure, closure_size, target, 0)) != orSuccess) --launched;
  }

  static void host_function(void*) {
    static std::atomic<unsigned> count{0};
    if (count++ % 100 == 0) orSetKernelError("fuzzed", 4);
  }

  void use_event() {
    int is_complete = 0;
    float elapsed_ms = 0;
    switch (pick(8)) {
      case 0:
      case 1:
        CALL(orEventRecord(event(), stream()));
        return;
      case 2:
        CALL(orEventQuery(event()));
        return;
      case 3:
        CALL(orEventIsComplete(or_null(&is_complete), event()));
        return;
      case 4:
        CALL(orEventSynchronize(event()));
        return;
      case 5:
        CALL(orEventElapsedTime(or_null(&elapsed_ms), event(), event()));
        return;
      default:
        CALL(orStreamWaitEvent(stream(), event(), one_in(30) ? 1 : 0));
        return;
    }
  }

  void use_stream() {
    int value = 0;
    unsigned flags = 0;
    unsigned long long id = 0;
    orStream_t found = nullptr;
    switch (pick(12)) {
      case 0:
        CALL(one_in(2) ? orStreamQuery(stream()) : orStreamTrySynchronize(stream()));
        return;
      case 1:
        CALL(orStreamSynchronize(stream()));
        return;
      case 2:
        CALL(orStreamGetDevice(stream(), or_null(&value)));
        return;
      case 3:
        CALL(orStreamGetPriority(stream(), or_null(&value)));
        return;
      case 4:
        CALL(orStreamGetFlags(stream(), or_null(&flags)));
        return;
      case 5:
        CALL(orStreamGetId(stream(), or_null(&id)));
        return;
      case 6:
        CALL(orStreamValidate(reinterpret_cast<uintptr_t>(stream())));
        return;
      case 7:
        CALL(orStreamHasEnded(or_null(&value), stream()));
        return;
      case 8:
        CALL(orStreamIsAlone(or_null(&value), stream()));
        return;
      case 9:
        CALL(orSetIdleFunction(nullptr));
        return;
      case 10:
        // Often one that lives: the first ids are those of the shared streams.
        if (CALL(orStreamGetById(or_null(&found), static_cast<int>(pick(4)) - 1,
                                 one_in(4) ? random_() : pick(200))) == orSuccess) {
          CALL(orStreamQuery(found));
        }
        return;
      default:
        CALL(orGetDefaultStream(or_null(&found), static_cast<int>(pick(4)) - 1));
        return;
    }
  }

  void copy() {
    // Of the two, at least one is device memory unless the size fits the host's.
    const auto kind = static_cast<orMemcpyKind>(one_in(4) ? pick(5) : 4);
    size_t bytes = size();
    char* host = one_in(2) ? shared_.pinned : shared_.plain.data();
    char* device = device_pointer();
    const bool is_host_only = device == nullptr || one_in(20);
    if (is_host_only) {
      device = shared_.pinned;
      bytes = std::min(bytes, plain_size);
    }
    const bool is_upwards = one_in(2);
    char* to = is_upwards ? device : host;
    char* from = is_upwards ? host : device;
    if (one_in(5) && !is_host_only) from = device_pointer();
    switch (pick(5)) {
      case 0:
        CALL(orMemcpy(to, from, bytes, kind));
        return;
      case 3:
        CALL(orMemcpyWithStream(to, from, bytes, kind, stream()));
        return;
      case 1:
        CALL(orMemsetAsync(device, 1, bytes, stream()));
        return;
      case 2:
        CALL(orMemset(device, 1, bytes));
        return;
      default:
        CALL(orMemcpyAsync(to, from, bytes, kind, stream()));
        return;
    }
  }

  void use_reserved_addresses() {
    constexpr size_t page = OPENREG_MAPPING_GRANULARITY;
    void* memory = nullptr;
    if (CALL(orMemAddressReserve(or_null(&memory), 4 * page)) != orSuccess) return;
    char* reserved = static_cast<char*>(memory);
    const size_t first = pick(4);
    const size_t count = pick(5);
    const bool is_mapped = CALL(orMemMap(reserved + first * page, count * page)) == orSuccess;
    CALL(orMemMap(device_pointer_inside(), page));
    CALL(orMemset(reserved + first * page, 1, page));
    CALL(orMemUnmap(reserved + pick(4) * page, page));
    if (is_mapped) {
      for (size_t i = 0; i < 4; ++i) CALL(orMemUnmap(reserved + i * page, page));
    }
    CALL(orMemAddressFree(reserved));
  }

  void allocate() {
    void* memory = nullptr;
    size_t free_size = 0;
    size_t total_size = 0;
    orPointerAttributes attributes;
    ptrdiff_t offset = 0;
    const size_t i = pick(place_count);
    switch (pick(10)) {
      case 0:
      case 1:
        if (CALL(orMalloc(or_null(&memory), size())) == orSuccess) {
          char* replaced = shared_.memory.replace(i, static_cast<char*>(memory));
          if (replaced != nullptr && CALL(orFree(replaced)) != orSuccess) keep(replaced);
          shared_.memory.bury(i, replaced);
        }
        return;
      case 2:
        CALL(orFree(one_in(2) ? static_cast<char*>(nullptr) : device_pointer_inside()));
        return;
      case 3:
        if (CALL(orMallocHost(or_null(&memory), own_size())) == orSuccess && memory != nullptr) {
          if (one_in(2) && CALL(orFreeHostUnused(memory)) == orSuccess) return;
          own_pinned_.push_back(static_cast<char*>(memory));
        }
        return;
      case 4:
        if (own_pinned_.empty()) return;
        if (CALL(orFreeHost(own_pinned_.back())) == orSuccess) own_pinned_.pop_back();
        return;
      case 5:
        CALL(orFreeHost(one_in(2) ? shared_.pinned + 1 : shared_.plain.data()));
        CALL(orFreeHostUnused(one_in(2) ? shared_.pinned + 1 : shared_.plain.data()));
        CALL(orHostRegister(shared_.pinned + 1, pick(100)));
        CALL(orHostUnregister(one_in(2) ? shared_.pinned : shared_.plain.data()));
        return;
      case 6:
        CALL(orMemGetInfo(or_null(&free_size), &total_size, static_cast<int>(pick(4)) - 1));
        return;
      case 8:
        return use_reserved_addresses();
      case 7:
        CALL(orPointerGetAttributes(or_null(&attributes), any_number<void*>()));
        CALL(orHostGetKernelPointer(or_null(&memory), shared_.pinned));
        CALL(orGetKernelOffset(or_null(&offset)));
        CALL(orDeviceGetAddressRange(or_null(&memory), &free_size, static_cast<int>(pick(4)) - 1));
        return;
      default:
        return touch_own_memory();
    }
  }

  // Sizes that fail, or that a machine has.
  size_t own_size() {
    const size_t wanted = size();
    return wanted == SIZE_MAX / 2 ? 1 : wanted;
  }

  // Never the start of an allocation, which another thread may own.
  char* device_pointer_inside() {
    char* memory = device_pointer();
    if (memory == nullptr) return nullptr;
    return memory + (reinterpret_cast<uintptr_t>(memory) % 2 == 0 ? 1 : 0);
  }

  // Copies with memory that this thread alone frees, on a stream that is in no capture.
  void touch_own_memory() {
    if (own_pinned_.empty()) return;
    char* memory = own_pinned_.back();
    *static_cast<volatile char*>(memory) = 1;
    char* device = device_pointer();
    if (device == nullptr) return;
    CALL(orMemcpyAsync(device, memory, 1, orMemcpyDefault, own_stream_));
    CALL(orMemcpyAsync(memory, device, 1, orMemcpyDefault, own_stream_));
  }

  // What could not be freed, as a capture forbade it.
  void keep(char* memory) { kept_.push_back(memory); }

  void capture() {
    orStreamCaptureMode mode = static_cast<orStreamCaptureMode>(one_in(30) ? 3 : 1 + pick(2));
    if (one_in(20)) mode = orStreamCaptureModeGlobal;
    if (!captured_.empty() && one_in(2)) return end_capture();
    if (captured_.size() >= 2) return end_capture();
    orStreamCaptureStatus status;
    unsigned long long id = 0;
    switch (pick(4)) {
      case 0:
        CALL(orStreamIsCapturing(stream(), or_null(&status)));
        return;
      case 1:
        CALL(orStreamGetCaptureInfo(stream(), or_null(&status), or_null(&id)));
        return;
      case 2: {
        orGraph_t graph = nullptr;
        if (CALL(orStreamEndCapture(stream(), or_null(&graph))) == orSuccess) store(graph);
        return;
      }
      default: {
        orStream_t begun = stream();
        // By name, as the current device may be another one when the capture ends.
        if (begun == nullptr) CHECK_OK(orGetDefaultStream(&begun, static_cast<int>(pick(2))));
        if (CALL(orStreamBeginCapture(begun, mode)) == orSuccess) captured_.push_back(begun);
        return;
      }
    }
  }

  void end_capture() {
    orGraph_t graph = nullptr;
    const orStream_t ended = captured_.back();
    captured_.pop_back();
    if (CALL(orStreamEndCapture(ended, &graph)) == orSuccess) store(graph);
  }

  void store(orGraph_t graph) {
    const size_t i = pick(place_count);
    const orGraph_t replaced = shared_.graphs.replace(i, graph);
    shared_.graphs.bury(i, replaced);
    CALL(orGraphDestroy(replaced));
  }

  void use_graph() {
    size_t count = 0;
    switch (pick(7)) {
      case 0:
        CALL(orGraphGetNodeCount(any(shared_.graphs), or_null(&count)));
        return;
      case 1:
        CALL(orGraphGetEdgeCount(any(shared_.graphs), or_null(&count)));
        return;
      case 2:
        if (one_in(20)) {
          CALL(orGraphDebugDotPrint(any(shared_.graphs), or_null("/dev/null"), pick(2) ? 0 : 1));
        }
        return;
      case 3: {
        orGraphExec_t exec = nullptr;
        if (CALL(orGraphInstantiate(or_null(&exec), any(shared_.graphs), one_in(30) ? 1 : 0)) ==
            orSuccess) {
          const size_t i = pick(place_count);
          const orGraphExec_t replaced = shared_.execs.replace(i, exec);
          shared_.execs.bury(i, replaced);
          CALL(orGraphExecDestroy(replaced));
        }
        return;
      }
      case 4: {
        orStreamCaptureMode mode = static_cast<orStreamCaptureMode>(pick(4));
        CALL(orThreadExchangeStreamCaptureMode(or_null(&mode)));
        return;
      }
      default:
        CALL(orGraphLaunch(any(shared_.execs), stream()));
        return;
    }
  }

  // Destroys what others use, and what is no such object.
  void replace() {
    const size_t i = pick(place_count);
    orEvent_t event = nullptr;
    orStream_t stream = nullptr;
    switch (pick(8)) {
      case 0:
      case 1: {
        const unsigned flags = one_in(4) ? static_cast<unsigned>(pick(16)) : orEventDefault;
        if (CALL(orEventCreateWithFlags(or_null(&event), flags)) != orSuccess) return;
        const orEvent_t replaced = shared_.events.replace(i, event);
        shared_.events.bury(i, replaced);
        CALL(orEventDestroy(replaced));
        return;
      }
      case 2: {
        if (!one_in(4)) return;  // each costs a thread
        if (CALL(orStreamCreateWithPriority(&stream, one_in(20) ? 7 : 1, 0)) != orSuccess) return;
        const orStream_t replaced = shared_.streams.replace(i, stream);
        shared_.streams.bury(i, replaced);
        // One that is capturing is destroyed when its capture has ended.
        if (replaced != nullptr && CALL(orStreamDestroy(replaced)) != orSuccess) {
          kept_streams_.push_back(replaced);
        }
        return;
      }
      case 3:
        CALL(orEventDestroy(shared_.events.stale(i)));
        CALL(orEventDestroy(any_number<orEvent_t>()));
        return;
      case 4:
        CALL(orGraphDestroy(shared_.graphs.stale(i)));
        CALL(orGraphDestroy(any_number<orGraph_t>()));
        return;
      case 5:
        CALL(orGraphExecDestroy(shared_.execs.stale(i)));
        CALL(orGraphExecDestroy(any_number<orGraphExec_t>()));
        return;
      case 6:
        CALL(orStreamDestroy(shared_.streams.stale(i)));
        return;
      default:
        CALL(orIpcLeaseEnd(any_number<orIpcLease_t>()));
        return;
    }
  }

  void use_device() {
    const int device = static_cast<int>(pick(5)) - 1;
    int value = 0;
    int other = 0;
    orDeviceProp properties;
    switch (pick(13)) {
      case 0:
        CALL(orSetDevice(device));
        return;
      case 1:
        CALL(orGetDevice(or_null(&value)));
        CALL(orGetDeviceCount(or_null(&value)));
        return;
      case 2:
        CALL(orDeviceIsActive(device, or_null(&value)));
        CALL(orDeviceIsBusy(device, or_null(&value)));
        return;
      case 3:
        CALL(orDeviceSynchronize());
        return;
      case 4:
        CALL(orDeviceSynchronizeIndex(device));
        return;
      case 5:
        CALL(orDeviceSynchronizeAll());
        return;
      case 6:
        CALL(orDeviceTakeErrorAll(static_cast<int>(pick(3)) - 1));
        return;
      case 7:
        CALL(orDeviceCanAccessPeer(or_null(&value), device, static_cast<int>(pick(3))));
        CALL(orDeviceGetStreamPriorityRange(or_null(&value), or_null(&other)));
        return;
      case 8:
        if (one_in(10)) CALL(orGetDeviceProperties(or_null(&properties), device));
        return;
      case 9:
        CALL(orSetDeviceCreatedFunction(nullptr));
        CALL(orIsForkedChild(or_null(&value)));
        return;
      case 10:
        CALL(orSetWaitCheck([] { return 1; }));
        CALL(orStreamSynchronize(stream()));
        CALL(orSetWaitCheck(nullptr));
        return;
      case 11:
        orSetKernelError(or_null("not in a kernel"), 5);
        return;
      default:
        CALL(orInit());
        return;
    }
  }

  void trace() {
    uint64_t id = 0;
    int is_on = 0;
    int depth = 0;
    int64_t now_ns = 0;
    orActivityRecord work = {};
    work.kind = static_cast<orActivityKind>(pick(12));
    work.name = or_null("fuzzed");
    switch (pick(10)) {
      case 0:
        CALL(orTraceStart(static_cast<unsigned>(pick(0x300))));
        return;
      case 1:
        CALL(orTraceStop());
        return;
      case 2:
        CALL(orTraceConsume(one_in(2) ? nullptr : +[](const orActivityRecord*, void*) {}, nullptr));
        return;
      case 3:
        CALL(orTraceIsOn(or_null(&is_on)));
        CALL(orTraceGetTime(or_null(&now_ns)));
        return;
      case 4:
        if (one_in(2)) {
          CALL(orTracePushExternalId(random_()));
        } else {
          CALL(orTracePopExternalId(or_null(&id)));
        }
        return;
      case 5:
        CALL(orTraceRecordWork(stream(), or_null("call"), or_null(&work)));
        return;
      case 6:
        CALL(orRangePush(or_null("pushed"), or_null(&depth)));
        return;
      case 7:
        CALL(orRangePop(or_null(&depth)));
        return;
      case 8:
        if (CALL(orRangeStart(or_null("started"), &id)) == orSuccess) CALL(orRangeEnd(id));
        CALL(orRangeEnd(random_()));
        return;
      default:
        CALL(orMark(or_null("marked")));
        return;
    }
  }

  void watch() {
    orWatchCounts counts;
    const orWatchObserver observer = [](void*, const void*, int) { return 1; };
    switch (pick(7)) {
      case 0:
        CALL(one_in(2) ? orWatchStart() : orWatchStop());
        return;
      case 1: {
        if (own_pinned_.empty()) return;
        unsigned long long number = 0;
        if (CALL(orWatchAdd(or_null(&number), own_pinned_.back(), one_in(2) ? 1 : size(),
                            static_cast<int>(pick(2)), one_in(30) ? nullptr : observer, nullptr)) !=
                orSuccess ||
            number == 0) {
          return;
        }
        touch_own_memory();
        CALL(orWatchRemove(number));
        return;
      }
      case 2:
        CALL(orWatchRemove(random_()));
        return;
      case 3: {
        const orFaultFn leave = [](void*, const orFault*) { return 0; };
        void* context = reinterpret_cast<void*>(uintptr_t{pick(4)});
        CALL(one_in(2) ? orFaultHandlerAdd(one_in(9) ? nullptr : leave, context)
                       : orFaultHandlerRemove(leave, context));
        return;
      }
      case 4:
        CALL(orWatchRearm());
        return;
      default:
        CALL(orWatchGetCounts(or_null(&counts)));
        return;
    }
  }

  // The bytes of a handle, good or not.
  template <typename Handle>
  Handle damaged(Handle handle) {
    if (one_in(2)) reinterpret_cast<char*>(&handle)[pick(sizeof(handle))] ^= char(1 << pick(8));
    return handle;
  }

  void share() {
    void* pointer = nullptr;
    orEvent_t opened = nullptr;
    orIpcLease_t lease = nullptr;
    unsigned long long number = 0;
    switch (pick(8)) {
      case 0:
        CALL(orIpcGetMemHandle(or_null(&memory_handle_), device_pointer()));
        return;
      case 1:
        CALL(orIpcOpenMemHandle(or_null(&pointer), damaged(memory_handle_), one_in(20) ? 1 : 0));
        return;
      case 2:
        CALL(orIpcCloseMemHandle(device_pointer()));
        return;
      case 3:
        CALL(orIpcGetEventHandle(or_null(&event_handle_), event()));
        return;
      case 4:
        CALL(orIpcOpenEventHandle(or_null(&opened), damaged(event_handle_)));
        return;
      case 5:
        if (CALL(orIpcLeaseGrant(or_null(&number), &lease_handle_)) == orSuccess) {
          CALL(orIpcLeaseFind(or_null(&number), damaged(lease_handle_)));
          CALL(orIpcLeaseRevoke(number));
        }
        return;
      case 6:
        CALL(orIpcLeaseTake(or_null(&lease), damaged(lease_handle_)));
        return;
      default:
        if (one_in(20)) {
          CALL(
              orIpcLeaseCollect(or_null(+[](unsigned long long, void*) {}), nullptr, pick(2) == 0));
        }
        return;
    }
  }

  void use_settings() {
    char text[OPENREG_SCHEDULE_SIZE];
    orSetting setting;
    const char* name = nullptr;
    int value = 0;
    size_t bytes = 0;
    const int index = static_cast<int>(pick(orSettingIndexCount + 4)) - 2;
    switch (pick(7)) {
      case 0:
        CALL(orGetSetting(or_null(&setting), index));
        return;
      case 1:
        CALL(orGetSettingSize(or_null(&bytes), index));
        return;
      case 2:
        CALL(orGetSettingName(or_null(&name), index));
        CALL(orGetSettingCount(or_null(&value)));
        CALL(orAreSettingsRead(or_null(&value)));
        CALL(orCheckSettings());
        return;
      case 3:
        CALL(orReviewSettings(or_null(&value), [](void*, const char*) {}, nullptr));
        return;
      case 4:
        CALL(orGetSchedule(or_null(&text[0]), pick(OPENREG_SCHEDULE_SIZE)));
        return;
      case 5:
        CALL(orSetSchedule(one_in(2) ? nullptr : "no schedule"));
        return;
      default:
        CHECK(orGetLastErrorMessage() != nullptr);
        static_cast<void>(orGetLastErrorTag());
        static_cast<void>(one_in(2) ? orPeekAtLastError() : orGetLastError());
        CHECK(orGetErrorString(static_cast<orError_t>(pick(1024))) != nullptr);
        return;
    }
  }

  // Ends what this thread has begun.
  void end() {
    orStreamCaptureMode mode = orStreamCaptureModeRelaxed;
    CHECK_OK(orThreadExchangeStreamCaptureMode(&mode));
    while (!captured_.empty()) end_capture();
    CHECK_OK(orStreamDestroy(own_stream_));
    for (char* memory : own_pinned_) {
      wait_until("it is free", [&] { return CALL(orFreeHost(memory)) == orSuccess; });
    }
    for (char* memory : kept_) {
      wait_until("it is free", [&] { return CALL(orFree(memory)) == orSuccess; });
    }
    ended_streams_ = std::move(kept_streams_);
    made += call_count_;
    succeeded += success_count_;
    const std::lock_guard lock(rest_mutex);
    rest.insert(rest.end(), ended_streams_.begin(), ended_streams_.end());
  }

 public:
  static inline std::mutex rest_mutex;
  static inline std::vector<orStream_t> rest;  // streams that could not be destroyed

 private:
  Shared& shared_;
  const int number_;
  long call_count_ = 0;
  long success_count_ = 0;
  std::mt19937_64 random_;
  orStream_t own_stream_ = nullptr;
  std::vector<char*> own_pinned_;
  std::vector<char*> kept_;
  std::vector<orStream_t> kept_streams_;
  std::vector<orStream_t> ended_streams_;
  std::vector<orStream_t> captured_;
  orIpcMemHandle_t memory_handle_{};
  orIpcEventHandle_t event_handle_{};
  orIpcLeaseHandle_t lease_handle_{};
};

// Workers, by the names of their threads: a sanitizer has a thread of its own.
int worker_count() {
  DIR* directory = opendir("/proc/self/task");
  CHECK(directory != nullptr);
  int count = 0;
  while (const dirent* entry = readdir(directory)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    if (std::getline(file, name) && name.starts_with("or-dev")) ++count;
  }
  closedir(directory);
  return count;
}

void fill(Shared& shared) {
  for (size_t i = 0; i < place_count; ++i) {
    shared.streams.replace(i, test::make_stream(static_cast<int>(i % 2)));
    shared.events.replace(i, test::make_event());
    shared.memory.replace(i, test::device_malloc(1 + std::min(5000 * i, max_size)));
  }
}

void clear(Shared& shared) {
  // Captures in mode relaxed may have been begun by a thread that lost them to another one.
  for (size_t i = 0; i < place_count; ++i) {
    orGraph_t graph = nullptr;
    if (orStreamEndCapture(shared.streams.live(i), &graph) == orSuccess) {
      CHECK_OK(orGraphDestroy(graph));
    }
  }
  for (const orStream_t stream : Fuzzer::rest) {
    orGraph_t graph = nullptr;
    if (orStreamEndCapture(stream, &graph) == orSuccess) CHECK_OK(orGraphDestroy(graph));
  }
  CHECK_OK(orTraceStop());
  wait_until("all work is done", [] { return orDeviceSynchronizeAll() == orSuccess; });
  for (size_t i = 0; i < place_count; ++i) {
    CHECK_OK(orEventDestroy(shared.events.live(i)));
    CHECK_OK(orGraphDestroy(shared.graphs.live(i)));
    CHECK_OK(orGraphExecDestroy(shared.execs.live(i)));
    CHECK_OK(orStreamDestroy(shared.streams.live(i)));
    CHECK_OK(orFree(shared.memory.live(i)));
  }
  for (const orStream_t stream : Fuzzer::rest) {
    // Another thread may have destroyed it, by its stale handle.
    const orError_t error = orStreamDestroy(stream);
    if (error != orErrorInvalidResourceHandle) CHECK_OK(error);
  }
  wait_until("all work is done", [] { return orDeviceSynchronizeAll() == orSuccess; });
  CHECK_OK(orFreeHost(shared.pinned));
  CHECK_OK(orTraceConsume(nullptr, nullptr));
}

void report_hang() {
  std::string text = "no call has returned for too long; the threads are in:";
  for (const auto& call : current_calls) text += std::string("\n  ") + call.load();
  test::fail(__FILE__, __LINE__, text);
}

// Waits for the threads. Fails if none gets on.
void watch_over(std::vector<std::thread>& threads) {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  std::thread guard([&] {
    long last = -1;
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, hang_after, [&] { return is_over; })) {
      long sum = 0;
      for (const auto& count : progress) sum += count;
      if (std::exchange(last, sum) == sum) report_hang();
    }
  });
  for (std::thread& thread : threads) thread.join();
  {
    const std::lock_guard lock(mutex);
    is_over = true;
  }
  changed.notify_all();
  guard.join();
}

}  // namespace

int main(int argc, char** argv) {
  const char* full = std::getenv("OPENREG_TEST_FULL");
  const bool is_full = full != nullptr && std::string(full) == "1";
  long call_count = is_full ? full_call_count : default_call_count;
  if (argc > 1) call_count = std::atol(argv[1]);
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atol(argv[2])) : 1;
  calls_left = call_count;
  for (auto& call : current_calls) call = "none";
  const auto begin = std::chrono::steady_clock::now();
  {
    Shared shared;
    fill(shared);
    std::vector<std::thread> threads;
    for (int i = 0; i < thread_count; ++i) {
      threads.emplace_back([&shared, i, seed] {
        CHECK_OK(orSetDevice(i % 2));
        Fuzzer(shared, i, seed * thread_count + static_cast<unsigned>(i)).run();
      });
    }
    watch_over(threads);
    clear(shared);
  }
  CHECK_EQUAL(destroyed.load(), launched.load());
  for (int device : {0, 1}) {
    size_t free_size = 0;
    size_t total_size = 0;
    CHECK_OK(orMemGetInfo(&free_size, &total_size, device));
    CHECK_EQUAL(free_size, total_size);
  }
  wait_until("all workers but those of the default streams have ended",
             [] { return worker_count() <= 2; });
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  std::cout << made.load() << " calls, seed " << seed << ", of which " << succeeded.load()
            << " succeeded, " << launched.load() << " launches, " << duration.count() << " s"
            << std::endl;
  return 0;
}
