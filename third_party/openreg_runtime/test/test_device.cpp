// Devices: counting, selecting, describing, and waiting for them.
#include <sys/resource.h>

#include <thread>

#include "check.h"

using test::Gate;
using test::launch_failure;
using test::make_stream;

namespace {

int current_device() {
  int device = -1;
  CHECK_OK(orGetDevice(&device));
  return device;
}

bool is_active(int device) {
  int active = -1;
  CHECK_OK(orDeviceIsActive(device, &active));
  return active == 1;
}

}  // namespace

TEST(current_device_starts_as_0_and_belongs_to_the_thread) {
  CHECK_EQUAL(current_device(), 0);
  CHECK_OK(orSetDevice(1));
  CHECK_EQUAL(current_device(), 1);
  std::thread([] { CHECK_EQUAL(current_device(), 0); }).join();
}

TEST(a_bad_device_number_is_refused_everywhere) {
  orDeviceProp properties;
  orStream_t stream = nullptr;
  int value = 0;
  size_t size = 0;
  for (int device : {-1, 2, 64, 1000}) {
    CHECK_ERROR(orSetDevice(device), orErrorInvalidDevice);
    CHECK_ERROR(orGetDeviceProperties(&properties, device), orErrorInvalidDevice);
    CHECK_ERROR(orDeviceIsActive(device, &value), orErrorInvalidDevice);
    CHECK_ERROR(orDeviceSynchronizeIndex(device), orErrorInvalidDevice);
    CHECK_ERROR(orDeviceCanAccessPeer(&value, 0, device), orErrorInvalidDevice);
    CHECK_ERROR(orDeviceCanAccessPeer(&value, device, 0), orErrorInvalidDevice);
    CHECK_ERROR(orGetDefaultStream(&stream, device), orErrorInvalidDevice);
    CHECK_ERROR(orMemGetInfo(&size, &size, device), orErrorInvalidDevice);
  }
  CHECK_EQUAL(current_device(), 0);
}

TEST(initialization_creates_no_device_and_keeps_children_from_devices) {
  test::check_child([] {
    CHECK_OK(orInit());
    CHECK_OK(orInit());
    CHECK(!is_active(0) && !is_active(1));
    test::check_child([] {
      int is_forked = 0;
      CHECK_OK(orIsForkedChild(&is_forked));
      CHECK_EQUAL(is_forked, 1);
      CHECK_ERROR(orInit(), orErrorForked);
    });
  });
}

TEST(null_results_are_refused) {
  int value = 0;
  CHECK_ERROR(orGetDeviceCount(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orGetDevice(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orGetDeviceProperties(nullptr, 0), orErrorInvalidValue);
  CHECK_ERROR(orDeviceIsActive(0, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orIsForkedChild(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orDeviceGetStreamPriorityRange(&value, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orDeviceGetStreamPriorityRange(nullptr, &value), orErrorInvalidValue);
  CHECK_ERROR(orDeviceCanAccessPeer(nullptr, 0, 1), orErrorInvalidValue);
}

TEST(without_devices_everything_says_so) {
  CHECK_EQUAL(setenv("OPENREG_DEVICE_COUNT", "0", 1), 0);
  orStream_t stream = nullptr;
  CHECK_ERROR(orSetDevice(0), orErrorNoDevice);
  CHECK_ERROR(orStreamCreate(&stream), orErrorNoDevice);
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorNoDevice);
  CHECK_ERROR(orDeviceSynchronize(), orErrorNoDevice);
  CHECK_OK(orDeviceSynchronizeAll());
  CHECK_EQUAL(current_device(), 0);
}

namespace {

std::vector<int> created;

void note_created(int device) { created.push_back(device); }

}  // namespace

TEST(the_created_function_hears_of_each_device_when_it_is_created) {
  CHECK_OK(orSetDeviceCreatedFunction(note_created));
  int count = 0;
  CHECK_OK(orGetDeviceCount(&count));
  CHECK_OK(orSetDevice(1));
  orDeviceProp properties;
  CHECK_OK(orGetDeviceProperties(&properties, 1));
  CHECK(created.empty());

  const orStream_t stream = make_stream(1);
  CHECK(created == std::vector{1});
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(created == std::vector{1});
}

TEST(the_created_function_hears_of_devices_that_exist) {
  make_stream(1);
  CHECK_OK(orSetDeviceCreatedFunction(note_created));
  CHECK(created == std::vector{1});

  CHECK_OK(orSetDeviceCreatedFunction(nullptr));
  make_stream(0);
  CHECK(created == std::vector{1});
}

TEST(properties_describe_the_machine) {
  orDeviceProp properties;
  CHECK_OK(orGetDeviceProperties(&properties, 1));
  CHECK_CONTAINS(properties.name, "OpenReg");
  CHECK(std::strlen(properties.name) < OPENREG_DEVICE_NAME_LENGTH);
  CHECK_EQUAL(properties.major, 1);
  CHECK_EQUAL(properties.minor, 0);
  CHECK(properties.multiProcessorCount >= 1);
  CHECK(properties.clockRate >= 0);
  CHECK_EQUAL(properties.physicalOrdinal, 1);
  CHECK_EQUAL(properties.warpSize, 1);
  CHECK_EQUAL(properties.textureAlignment, size_t{OPENREG_MEMORY_ALIGNMENT});
  CHECK(properties.concurrentKernels && properties.unifiedAddressing && properties.integrated);
}

TEST(a_device_becomes_active_with_its_first_use) {
  orDeviceProp properties;
  orEvent_t event = test::make_event();
  int count = 0;
  size_t free_size = 0;
  size_t total_size = 0;
  CHECK_OK(orGetDeviceCount(&count));
  CHECK_OK(orSetDevice(1));
  CHECK_OK(orGetDeviceProperties(&properties, 1));
  CHECK_OK(orMemGetInfo(&free_size, &total_size, 1));
  CHECK_OK(orDeviceSynchronize());
  CHECK_OK(orEventQuery(event));
  CHECK(!is_active(0) && !is_active(1));
  ptrdiff_t offset = 0;
  CHECK_OK(orGetKernelOffset(&offset));
  CHECK(!is_active(0) && is_active(1));
  CHECK_OK(orEventDestroy(event));
}

TEST(a_device_without_memory_is_an_initialization_error) {
  rlimit limit;
  CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK_OK(orCheckSettings());
  const rlimit none{0, limit.rlim_max};
  CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &none), 0);
  void* memory = nullptr;
  CHECK_ERROR(orMalloc(&memory, 1), orErrorInitializationError);
  CHECK_CONTAINS(orGetLastErrorMessage(), "memfd_create");
  CHECK(!is_active(0));
  CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK_OK(orMalloc(&memory, 1));
}

TEST(priorities_range_from_0_to_minus_1) {
  int least = 5;
  int greatest = 5;
  CHECK_OK(orDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK_EQUAL(least, 0);
  CHECK_EQUAL(greatest, -1);
}

TEST(different_devices_are_peers) {
  int can_access = -1;
  CHECK_OK(orDeviceCanAccessPeer(&can_access, 0, 1));
  CHECK_EQUAL(can_access, 1);
  CHECK_OK(orDeviceCanAccessPeer(&can_access, 1, 1));
  CHECK_EQUAL(can_access, 0);
}

TEST(synchronizing_a_device_waits_for_all_its_streams_and_no_others) {
  Gate other_device;
  other_device.hold(make_stream(1));
  int done = 0;
  Gate gate;
  const orStream_t first = make_stream(0);
  const orStream_t second = make_stream(0);
  gate.hold(first);
  CHECK_OK(test::launch(first, "count", [&] { return ++done, orSuccess; }));
  gate.hold(second);
  std::thread opener([&] {
    gate.wait_until_reached();
    gate.open();
  });
  CHECK_OK(orDeviceSynchronize());
  CHECK_EQUAL(done, 1);
  opener.join();
  CHECK_OK(orStreamQuery(first));
  CHECK_OK(orStreamQuery(second));
  other_device.open();
  CHECK_OK(orDeviceSynchronizeIndex(1));
}

TEST(synchronizing_all_devices_waits_for_each) {
  Gate gate;
  gate.hold(make_stream(0));
  gate.hold(make_stream(1));
  std::thread opener([&] { gate.open(); });
  CHECK_OK(orDeviceSynchronizeAll());
  opener.join();
}

TEST(synchronizing_a_device_waits_for_all_and_returns_the_first_failure_of_any_stream) {
  const orStream_t first = make_stream();
  const orStream_t second = make_stream();
  const orStream_t third = make_stream();
  CHECK_OK(launch_failure(second, orErrorNotSupported, "first by time"));
  // Wait for it without looking at the failure.
  CHECK_OK(orFree(test::device_malloc(1)));
  CHECK_OK(launch_failure(first, orErrorInvalidValue, "second by time"));
  Gate gate;
  gate.hold(third);
  std::thread opener([&] {
    gate.wait_until_reached();
    gate.open();
  });
  CHECK_ERROR(orDeviceSynchronize(), orErrorNotSupported);
  CHECK_CONTAINS(orGetLastErrorMessage(), "first by time");
  opener.join();
  CHECK_OK(orStreamQuery(third));
  CHECK_OK(orDeviceSynchronize());
  CHECK_OK(orStreamSynchronize(first));
}

TEST(a_device_is_busy_while_work_on_it_is_not_done) {
  const orStream_t stream = make_stream(1);
  int is_busy = -1;
  CHECK_OK(orDeviceIsBusy(1, &is_busy));
  CHECK_EQUAL(is_busy, 0);
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orDeviceIsBusy(1, &is_busy));
  CHECK_EQUAL(is_busy, 1);
  CHECK_OK(orDeviceIsBusy(0, &is_busy));
  CHECK_EQUAL(is_busy, 0);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orDeviceIsBusy(1, &is_busy));
  CHECK_EQUAL(is_busy, 0);
  CHECK_ERROR(orDeviceIsBusy(OPENREG_MAX_DEVICES, &is_busy), orErrorInvalidDevice);
  CHECK_ERROR(orDeviceIsBusy(0, nullptr), orErrorInvalidValue);
}

TEST(taking_the_error_of_all_devices_waits_and_returns_the_first_failure) {
  const orStream_t first = make_stream(0);
  const orStream_t second = make_stream(1);
  CHECK_OK(orDeviceTakeErrorAll(0));
  Gate gate;
  gate.hold(first);
  CHECK_OK(launch_failure(first, orErrorNotSupported, "behind the gate"));
  CHECK_OK(orDeviceTakeErrorAll(0));
  std::thread opener([&] { gate.open(); });
  CHECK_ERROR(orDeviceTakeErrorAll(60'000), orErrorNotSupported);
  opener.join();
  CHECK_CONTAINS(orGetLastErrorMessage(), "behind the gate");
  CHECK_OK(launch_failure(second, orErrorInvalidValue));
  CHECK_ERROR(orDeviceTakeErrorAll(60'000), orErrorInvalidValue);
  CHECK_OK(orDeviceSynchronizeAll());
  CHECK_ERROR(orDeviceTakeErrorAll(-1), orErrorInvalidValue);
}

TEST(taking_the_error_of_all_devices_ends_in_time_with_what_there_is) {
  const orStream_t held = make_stream(0);
  const orStream_t failed = make_stream(1);
  Gate gate;
  gate.hold(held);
  CHECK_OK(launch_failure(failed, orErrorNotSupported));
  CHECK_OK(orFree(test::device_malloc(1)));  // waits for it without looking at the failure
  CHECK_ERROR(orDeviceTakeErrorAll(1), orErrorNotSupported);
  CHECK_OK(orDeviceTakeErrorAll(1));
  gate.open();
  CHECK_OK(orDeviceSynchronizeAll());
}

TEST(taking_the_error_of_all_devices_leaves_a_capture_alone) {
  const orStream_t stream = make_stream(0);
  CHECK_OK(orStreamBeginCapture(stream, orStreamCaptureModeGlobal));
  CHECK_OK(launch_failure(stream, orErrorNotSupported));
  CHECK_OK(orDeviceTakeErrorAll(60'000));
  orGraph_t graph = nullptr;
  CHECK_OK(orStreamEndCapture(stream, &graph));
  CHECK_OK(orGraphDestroy(graph));
}

TEST(the_failure_of_a_destroyed_stream_is_not_lost) {
  const orStream_t stream = make_stream();
  CHECK_OK(launch_failure(stream, orErrorNotSupported));
  CHECK_OK(orStreamDestroy(stream));
  for (int i = 0; i < 3; ++i) CHECK_OK(orStreamDestroy(make_stream()));
  CHECK_ERROR(orDeviceSynchronize(), orErrorNotSupported);
  CHECK_OK(orDeviceSynchronize());
}

TEST(a_kernel_runs_on_the_device_of_its_stream) {
  const orStream_t stream = make_stream(1);
  CHECK_OK(orSetDevice(0));
  int seen = -1;
  int after_change = -1;
  CHECK_OK(test::launch(stream, "look", [&] {
    seen = current_device();
    return orSetDevice(0);
  }));
  CHECK_OK(test::launch(stream, "look again", [&] {
    after_change = current_device();
    return orSuccess;
  }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(seen, 1);
  CHECK_EQUAL(after_change, 1);
}

TEST(work_may_not_wait_for_its_own_device) {
  orError_t device_wait = orSuccess;
  orError_t free_error = orSuccess;
  char* memory = test::device_malloc(1);
  CHECK_OK(test::launch(nullptr, "waits", [&] {
    device_wait = orDeviceSynchronize();
    free_error = orFree(memory);
    return orSuccess;
  }));
  CHECK_OK(orDeviceSynchronize());
  CHECK_EQUAL(device_wait, orErrorNotPermitted);
  CHECK_EQUAL(free_error, orErrorNotPermitted);
  CHECK_OK(orFree(memory));
}
