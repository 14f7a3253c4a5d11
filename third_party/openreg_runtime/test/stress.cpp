// Everything at once: threads that submit, copy, allocate, record, wait, fail and trace on shared
// streams and events, for a fixed time, driven by a fixed seed. Checks that data arrives, that
// nothing is lost, and, under a sanitizer, that there are no data races.
#define OPENREG_TEST_WITHOUT_MAIN
#include <array>
#include <atomic>
#include <random>
#include <shared_mutex>
#include <thread>

#include "check.h"

using test::launch;

namespace {

constexpr int thread_count = 6;
constexpr int stream_count = 5;
constexpr int event_count = 8;
constexpr int64_t default_duration_ns = 8'000'000'000;

std::atomic<long> submitted{0};
std::atomic<long> destroyed{0};
std::atomic<long> records{0};
std::atomic<long> graphs{0};

// Counts the closures that were destroyed after they had been submitted.
struct Token {
  Token() = default;
  Token(Token&& other) noexcept : is_counted(std::exchange(other.is_counted, false)) {}
  ~Token() { destroyed += is_counted; }
  bool is_counted = true;
};

// Streams that all threads use; each is replaced now and then.
class Streams {
 public:
  Streams() {
    for (int i = 0; i < stream_count; ++i) streams_.push_back(test::make_stream(i % 2));
  }

  // Calls `use` with a stream that lives during the call.
  template <typename Use>
  void with(size_t i, Use use) {
    const std::shared_lock lock(mutex_);
    use(streams_[i % streams_.size()]);
  }

  void replace(size_t i) {
    const orStream_t fresh = test::make_stream(static_cast<int>(i % 2));
    const std::unique_lock lock(mutex_);
    CHECK_OK(orStreamDestroy(std::exchange(streams_[i % streams_.size()], fresh)));
  }

 private:
  std::shared_mutex mutex_;
  std::vector<orStream_t> streams_;
};

struct Shared {
  Shared() {
    for (int i = 0; i < event_count; ++i) events.push_back(test::make_event());
  }
  ~Shared() {
    for (orEvent_t event : events) CHECK_OK(orEventDestroy(event));
  }
  Streams streams;
  std::vector<orEvent_t> events;
};

// Streams fail on purpose here, so waiting may report that; and a device whose stream is capturing
// cannot be waited for.
void check_allowed(orError_t error) {
  const bool is_allowed = error == orSuccess || error == orErrorNotReady ||
                          error == orErrorNotSupported || error == orErrorStreamCaptureUnsupported;
  if (!is_allowed) CHECK_OK(error);
}

class Actor {
 public:
  Actor(Shared& shared, unsigned seed) : shared_(shared), random_(seed) {}
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;
  ~Actor() { CHECK_OK(orGraphExecDestroy(exec_)); }

  void act() {
    CHECK_OK(orSetDevice(static_cast<int>(pick(2))));
    switch (pick(20)) {
      case 0:
        return fail();
      case 1:
        return check_copies();
      case 2:
        return allocate();
      case 3:
        return trace();
      case 4:
        return shared_.streams.replace(random_());
      case 5:
        return synchronize();
      case 6:
      case 7:
        return record();
      case 8:
      case 9:
        return wait();
      case 16:
        return capture();
      case 17:
      case 18:
        return launch_graph();
      case 10:
        return copy_between_devices();
      default:
        return submit();
    }
  }

 private:
  size_t pick(size_t count) { return random_() % count; }
  orEvent_t event() { return shared_.events[pick(event_count)]; }

  void submit() {
    const size_t count = 1 + pick(50);
    shared_.streams.with(random_(), [&](orStream_t stream) {
      for (size_t i = 0; i < count; ++i) {
        if (pick(20) == 0) {
          submit_sized<6000>(stream);
        } else {
          submit_sized<150>(stream);
        }
      }
    });
  }

  template <size_t size>
  void submit_sized(orStream_t stream) {
    std::array<unsigned char, size> bytes;
    bytes.fill(static_cast<unsigned char>(size));
    CHECK_OK(launch_static(stream, [bytes, token = Token()] {
      return bytes.front() == static_cast<unsigned char>(size) && bytes.back() == bytes.front()
                 ? orSuccess
                 : orErrorUnknown;
    }));
    ++submitted;
  }

  // As launch(), with one kernel object per kind of callable.
  template <typename Callable>
  static orError_t launch_static(orStream_t stream, Callable callable) {
    static const orKernel kernel = {
        "stress", [](void* closure) -> orError_t { return (*static_cast<Callable*>(closure))(); },
        [](void* to, void* from) {
          new (to) Callable(std::move(*static_cast<Callable*>(from)));
          static_cast<Callable*>(from)->~Callable();
        },
        [](void* closure) { static_cast<Callable*>(closure)->~Callable(); }};
    alignas(Callable) std::byte closure[sizeof(Callable)];
    return orLaunchKernel(&kernel, new (closure) Callable(std::move(callable)), sizeof(Callable),
                          stream, 0);
  }

  void fail() {
    shared_.streams.with(random_(), [&](orStream_t stream) {
      CHECK_OK(launch_static(stream, [] {
        orSetKernelError("on purpose", 1);
        return orErrorNotSupported;
      }));
    });
  }

  // On a stream of its own, data must arrive whatever the others do.
  void check_copies() {
    const size_t size = 1 + pick(pick(4) == 0 ? 300'000 : 3'000);
    const orStream_t stream = test::make_stream(static_cast<int>(pick(2)));
    char* first = test::device_malloc(size);
    char* second = test::device_malloc(size);
    char* pinned = test::host_malloc(size);
    std::string host(size, static_cast<char>(random_()));
    const std::string expected = host;
    CHECK_OK(orMemcpyAsync(first, host.data(), size, orMemcpyHostToDevice, stream));
    host.assign(size, '?');
    CHECK_OK(orMemcpyAsync(second, first, size, orMemcpyDefault, stream));
    CHECK_OK(orMemsetAsync(first, 0, size, stream));
    CHECK_OK(orMemcpyAsync(pinned, second, size, orMemcpyDeviceToHost, stream));
    CHECK_OK(orMemcpyAsync(host.data(), second, size, orMemcpyDeviceToHost, stream));
    CHECK(host == expected);
    CHECK(expected == std::string(pinned, size));
    CHECK_OK(orStreamDestroy(stream));
    CHECK_OK(orFree(first));
    CHECK_OK(orFree(second));
    CHECK_OK(orFreeHost(pinned));
  }

  void copy_between_devices() {
    CHECK_OK(orSetDevice(0));
    char* on_zero = test::device_malloc(1000);
    CHECK_OK(orSetDevice(1));
    char* on_one = test::device_malloc(1000);
    shared_.streams.with(random_(), [&](orStream_t stream) {
      CHECK_OK(orMemcpyAsync(on_one, on_zero, 1000, orMemcpyDeviceToDevice, stream));
    });
    // The stream may be of either device, and a free waits for its own only.
    while (orDeviceSynchronizeAll() == orErrorStreamCaptureUnsupported) std::this_thread::yield();
    CHECK_OK(orFree(on_zero));
    CHECK_OK(orFree(on_one));
  }

  // Captures a fork and a join, which another thread may invalidate by waiting for a device.
  void capture() {
    const orStream_t stream = test::make_stream(static_cast<int>(pick(2)));
    const orStream_t other = test::make_stream(static_cast<int>(pick(2)));
    const orEvent_t event = test::make_event();
    const auto submit_nodes = [&](orStream_t branch) {
      for (size_t i = 0, count = 1 + pick(20); i < count; ++i) {
        const orError_t error = launch_static(branch, [runs = 0, token = Token()]() mutable {
          ++runs;  // a data race if two launches of the graph run at the same time
          return orSuccess;
        });
        if (error != orSuccess) return error;
        ++submitted;
      }
      return orSuccess;
    };
    const auto capture_all = [&] {
      if (const orError_t error = submit_nodes(stream)) return error;
      if (const orError_t error = orEventRecord(event, stream)) return error;
      if (const orError_t error = orStreamWaitEvent(other, event, 0)) return error;
      if (const orError_t error = submit_nodes(stream)) return error;
      if (const orError_t error = submit_nodes(other)) return error;
      if (const orError_t error = orEventRecord(event, other)) return error;
      return orStreamWaitEvent(stream, event, 0);
    };
    CHECK_OK(orStreamBeginCapture(
        stream, pick(2) == 0 ? orStreamCaptureModeThreadLocal : orStreamCaptureModeRelaxed));
    const orError_t error = capture_all();
    orGraph_t graph = nullptr;
    const orError_t end_error = orStreamEndCapture(stream, &graph);
    CHECK(error == orSuccess || error == orErrorStreamCaptureInvalidated);
    CHECK_EQUAL(end_error == orSuccess ? orSuccess : orErrorStreamCaptureInvalidated, end_error);
    if (end_error == orSuccess) {
      CHECK_OK(orGraphExecDestroy(exec_));
      CHECK_OK(orGraphInstantiate(&exec_, graph, 0));
      ++graphs;
    }
    CHECK_OK(orGraphDestroy(graph));
    CHECK_OK(orEventDestroy(event));
    CHECK_OK(orStreamDestroy(stream));
    CHECK_OK(orStreamDestroy(other));
  }

  void launch_graph() {
    if (exec_ == nullptr) return;
    for (size_t i = 0, count = 1 + pick(5); i < count; ++i) {
      shared_.streams.with(random_(),
                           [&](orStream_t stream) { CHECK_OK(orGraphLaunch(exec_, stream)); });
    }
  }

  void allocate() {
    const size_t size = 1 + pick(100'000);
    char* memory = test::device_malloc(size);
    orPointerAttributes attributes;
    CHECK_OK(orPointerGetAttributes(&attributes, memory + size - 1));
    CHECK(attributes.allocationBase == memory);
    CHECK_EQUAL(test::kernel_address(memory)[size - 1], '\0');
    test::kernel_address(memory)[size - 1] = 1;
    CHECK_OK(orFree(memory));
  }

  void trace() {
    const auto count = [](const orActivityRecord* record, void*) {
      CHECK(record->start_ns <= record->end_ns);
      ++records;
    };
    CHECK_OK(orTraceStart(1 + static_cast<unsigned>(pick(orActivityAll))));
    CHECK_OK(orTracePushExternalId(7));
    submit();
    uint64_t id = 0;
    CHECK_OK(orTracePopExternalId(&id));
    if (pick(2) == 0) CHECK_OK(orTraceStop());
    CHECK_OK(orTraceConsume(count, nullptr));
  }

  void synchronize() {
    switch (pick(4)) {
      case 0:
        return check_allowed(orDeviceSynchronize());
      case 1:
        return check_allowed(orDeviceSynchronizeAll());
      case 2:
        return shared_.streams.with(
            random_(), [](orStream_t stream) { check_allowed(orStreamSynchronize(stream)); });
      default:
        return shared_.streams.with(
            random_(), [](orStream_t stream) { check_allowed(orStreamQuery(stream)); });
    }
  }

  void record() {
    shared_.streams.with(random_(),
                         [&](orStream_t stream) { CHECK_OK(orEventRecord(event(), stream)); });
    float elapsed_ms = 0;
    const orError_t error = orEventElapsedTime(&elapsed_ms, event(), event());
    if (error != orErrorInvalidResourceHandle) check_allowed(error);
  }

  void wait() {
    switch (pick(4)) {
      case 0:
        return check_allowed(orEventSynchronize(event()));
      case 1:
        return check_allowed(orEventQuery(event()));
      default:
        return shared_.streams.with(
            random_(), [&](orStream_t stream) { CHECK_OK(orStreamWaitEvent(stream, event(), 0)); });
    }
  }

  Shared& shared_;
  std::mt19937 random_;
  orGraphExec_t exec_ = nullptr;
};

int64_t now_ns() {
  int64_t now = 0;
  CHECK_OK(orTraceGetTime(&now));
  return now;
}

void check_no_memory_is_left() {
  for (int device : {0, 1}) {
    size_t free_size = 0;
    size_t total_size = 0;
    CHECK_OK(orMemGetInfo(&free_size, &total_size, device));
    CHECK_EQUAL(free_size, total_size);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t duration_ns = argc > 1 ? std::atoll(argv[1]) * 1'000'000 : default_duration_ns;
  Shared shared;
  std::vector<std::thread> threads;
  const int64_t end_ns = now_ns() + duration_ns;
  for (unsigned t = 0; t < thread_count; ++t) {
    threads.emplace_back([&shared, t, end_ns] {
      Actor actor(shared, 1000 + t);
      while (now_ns() < end_ns) actor.act();
    });
  }
  for (std::thread& thread : threads) thread.join();
  check_allowed(orDeviceSynchronizeAll());
  CHECK_OK(orDeviceSynchronizeAll());
  CHECK_OK(orTraceStop());
  CHECK_OK(orTraceConsume(nullptr, nullptr));
  CHECK_EQUAL(destroyed.load(), submitted.load());
  check_no_memory_is_left();
  std::cout << submitted.load() << " launches, " << records.load() << " records, " << graphs.load()
            << " graphs" << std::endl;
  return 0;
}
