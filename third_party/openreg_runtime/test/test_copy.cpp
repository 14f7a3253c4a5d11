// Copies and fills: every direction, what waits, and what is refused.
#include <array>
#include <numeric>
#include <thread>

#include "check.h"

using test::device_malloc;
using test::Gate;
using test::host_malloc;
using test::kernel_address;
using test::make_stream;

namespace {

constexpr size_t size = 200'000;

std::string pattern(int seed, size_t length = size) {
  std::string text(length, '\0');
  std::iota(text.begin(), text.end(), static_cast<char>(seed));
  return text;
}

std::string read(const char* device_memory, size_t length = size) {
  std::string text(length, '?');
  CHECK_OK(orMemcpy(text.data(), device_memory, length, orMemcpyDefault));
  return text;
}

}  // namespace

TEST(data_survives_every_direction) {
  const std::string text = pattern(3);
  CHECK_OK(orSetDevice(1));
  char* on_one = device_malloc(size);
  CHECK_OK(orSetDevice(0));
  char* on_zero = device_malloc(size);
  char* pinned = host_malloc(size);
  std::string host(size, '?');
  CHECK_OK(orMemcpy(pinned, text.data(), size, orMemcpyHostToHost));
  CHECK_OK(orMemcpy(on_zero, pinned, size, orMemcpyHostToDevice));
  CHECK_OK(orMemcpy(on_one, on_zero, size, orMemcpyDeviceToDevice));
  CHECK_OK(orMemcpy(host.data(), on_one, size, orMemcpyDeviceToHost));
  CHECK(host == text);
}

TEST(asynchronous_copies_run_in_order) {
  const orStream_t stream = make_stream();
  const std::string text = pattern(5);
  char* a = device_malloc(size);
  char* b = device_malloc(size);
  char* pinned = host_malloc(size);
  std::memcpy(pinned, text.data(), size);
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orMemcpyAsync(a, pinned, size, orMemcpyHostToDevice, stream));
  CHECK_OK(orMemcpyAsync(b, a, size, orMemcpyDefault, stream));
  CHECK_OK(orMemsetAsync(a, 'z', size, stream));
  CHECK_OK(orMemcpyAsync(pinned, b, size, orMemcpyDeviceToHost, stream));
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(text == std::string(pinned, size));
  CHECK(read(a) == std::string(size, 'z'));
}

TEST(a_small_unregistered_source_may_change_at_once) {
  const orStream_t stream = make_stream();
  for (size_t length : {size_t{1}, size_t{4000}, size_t{4096}, size_t{5000}, size_t{65536}}) {
    char* memory = device_malloc(length);
    Gate gate;
    gate.hold(stream);
    std::string source = pattern(1, length);
    CHECK_OK(orMemcpyAsync(memory, source.data(), length, orMemcpyHostToDevice, stream));
    source.assign(length, 'x');
    CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
    gate.open();
    CHECK_OK(orStreamSynchronize(stream));
    CHECK(read(memory, length) == pattern(1, length));
  }
}

TEST(a_large_unregistered_source_may_change_at_once) {
  const orStream_t stream = make_stream();
  char* memory = device_malloc(size);
  Gate gate;
  gate.hold(stream);
  std::thread opener([&] {
    gate.wait_until_reached();
    gate.open();
  });
  std::string source = pattern(2);
  CHECK_OK(orMemcpyAsync(memory, source.data(), size, orMemcpyHostToDevice, stream));
  source.assign(size, 'x');
  opener.join();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(read(memory) == pattern(2));
}

TEST(an_unregistered_destination_holds_the_data_at_once) {
  const orStream_t stream = make_stream();
  char* memory = device_malloc(size);
  for (bool is_busy : {false, true}) {
    CHECK_OK(orMemsetAsync(memory, is_busy ? 'b' : 'i', size, stream));
    Gate gate;
    if (is_busy) gate.hold(stream);
    std::thread opener([&] { gate.open(); });
    std::string host(size, '?');
    CHECK_OK(orMemcpyAsync(host.data(), memory, size, orMemcpyDeviceToHost, stream));
    CHECK(host == std::string(size, is_busy ? 'b' : 'i'));
    opener.join();
  }
}

TEST(copies_with_a_stream_wait_for_it) {
  const orStream_t stream = make_stream();
  char* memory = device_malloc(size);
  char* pinned = host_malloc(size);
  for (bool is_busy : {false, true}) {
    CHECK_OK(orMemsetAsync(memory, is_busy ? 'b' : 'i', size, stream));
    Gate gate;
    if (is_busy) gate.hold(stream);
    std::thread opener([&] { gate.open(); });
    CHECK_OK(orMemcpyWithStream(pinned, memory, size, orMemcpyDeviceToHost, stream));
    CHECK_OK(orStreamQuery(stream));
    CHECK(std::string(pinned, size) == std::string(size, is_busy ? 'b' : 'i'));
    opener.join();
  }
}

TEST(copies_with_a_stream_wait_for_no_other) {
  const orStream_t stream = make_stream();
  char* memory = device_malloc(size);
  char* pinned = host_malloc(size);
  std::memset(pinned, 'p', size);
  Gate gate;
  gate.hold(nullptr);
  CHECK_OK(orMemcpyWithStream(memory, pinned, size, orMemcpyHostToDevice, stream));
  CHECK_ERROR(orStreamQuery(nullptr), orErrorNotReady);
  gate.open();
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK(read(memory) == std::string(size, 'p'));
}

TEST(copies_of_registered_memory_do_not_wait) {
  const orStream_t stream = make_stream();
  char* memory = device_malloc(size);
  std::string host(size, 'h');
  CHECK_OK(orHostRegister(host.data(), size));
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orMemcpyAsync(memory, host.data(), size, orMemcpyHostToDevice, stream));
  CHECK_OK(orMemsetAsync(memory, 'd', size / 2, stream));
  CHECK_OK(orMemcpyAsync(host.data(), memory, size, orMemcpyDeviceToHost, stream));
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(host == std::string(size / 2, 'd') + std::string(size / 2, 'h'));
  CHECK_OK(orHostUnregister(host.data()));
}

TEST(pinned_copies_do_not_wait) {
  const orStream_t stream = make_stream();
  char* memory = device_malloc(size);
  char* pinned = host_malloc(size);
  char* other = host_malloc(size);
  std::memset(pinned, 'p', size);
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orMemcpyAsync(memory, pinned, size, orMemcpyHostToDevice, stream));
  CHECK_OK(orMemcpyAsync(other, pinned, size, orMemcpyHostToHost, stream));
  CHECK_OK(orMemsetAsync(pinned, 'q', size, stream));
  CHECK_OK(orMemcpyAsync(pinned, memory, size, orMemcpyDeviceToHost, stream));
  CHECK_ERROR(orStreamQuery(stream), orErrorNotReady);
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(pinned[size - 1], 'p');
  CHECK_EQUAL(other[size - 1], 'p');
}

TEST(a_copy_between_devices_runs_on_the_given_stream) {
  CHECK_OK(orSetDevice(1));
  char* on_one = device_malloc(size);
  CHECK_OK(orMemset(on_one, '1', size));
  const orStream_t stream = make_stream(0);
  char* on_zero = device_malloc(size);
  Gate gate;
  gate.hold(stream);
  CHECK_OK(orMemcpyAsync(on_zero, on_one, size, orMemcpyDeviceToDevice, stream));
  CHECK_OK(orDeviceSynchronizeIndex(1));
  CHECK_EQUAL(kernel_address(on_zero)[0], '\0');
  gate.open();
  CHECK_OK(orStreamSynchronize(stream));
  CHECK(read(on_zero) == std::string(size, '1'));
}

TEST(synchronous_copies_follow_the_default_stream) {
  char* memory = device_malloc(size);
  Gate gate;
  gate.hold(nullptr);
  CHECK_OK(orMemsetAsync(memory, 'm', size, nullptr));
  std::thread opener([&] {
    gate.wait_until_reached();
    gate.open();
  });
  CHECK(read(memory) == std::string(size, 'm'));
  opener.join();
  CHECK_OK(orMemset(memory, 256 + 'n', size));
  CHECK(read(memory) == std::string(size, 'n'));
}

TEST(overlapping_ranges_are_moved) {
  char* memory = device_malloc(100);
  const std::string text = pattern(0, 100);
  CHECK_OK(orMemcpy(memory, text.data(), 100, orMemcpyDefault));
  CHECK_OK(orMemcpy(memory + 10, memory, 90, orMemcpyDeviceToDevice));
  CHECK(read(memory, 100) == text.substr(0, 10) + text.substr(0, 90));
}

TEST(nothing_is_copied_for_a_size_of_0) {
  CHECK_OK(orMemcpy(nullptr, nullptr, 0, orMemcpyDefault));
  CHECK_OK(orMemcpyAsync(nullptr, nullptr, 0, orMemcpyDeviceToHost, nullptr));
  CHECK_OK(orMemset(nullptr, 1, 0));
  CHECK_OK(orMemsetAsync(nullptr, 1, 0, nullptr));
}

TEST(a_kind_that_contradicts_the_pointers_is_refused) {
  char* memory = device_malloc(10);
  std::array<char, 10> host = {};
  CHECK_ERROR(orMemcpy(memory, host.data(), 10, orMemcpyDeviceToHost),
              orErrorInvalidMemcpyDirection);
  CHECK_CONTAINS(orGetLastErrorMessage(), "host to device");
  CHECK_ERROR(orMemcpy(memory, memory, 10, orMemcpyHostToHost), orErrorInvalidMemcpyDirection);
  CHECK_ERROR(orMemcpyAsync(host.data(), memory, 10, orMemcpyDeviceToDevice, nullptr),
              orErrorInvalidMemcpyDirection);
  CHECK_ERROR(orMemcpyAsync(host.data(), host.data(), 10, orMemcpyHostToDevice, nullptr),
              orErrorInvalidMemcpyDirection);
  CHECK_ERROR(orMemcpy(memory, memory, 10, static_cast<orMemcpyKind>(7)),
              orErrorInvalidMemcpyDirection);
  CHECK_ERROR(orMemcpyAsync(memory, memory, 0, static_cast<orMemcpyKind>(7), nullptr),
              orErrorInvalidMemcpyDirection);
}

TEST(ranges_outside_their_allocation_are_refused) {
  char* memory = device_malloc(100);
  char* next = device_malloc(100);
  std::array<char, 600> host = {};
  CHECK_ERROR(orMemcpy(memory, host.data(), 101, orMemcpyDefault), orErrorInvalidValue);
  CHECK_ERROR(orMemcpy(host.data(), memory + 50, 51, orMemcpyDefault), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "51 bytes at offset 50");
  CHECK_ERROR(orMemset(memory, 0, SIZE_MAX), orErrorInvalidValue);
  CHECK_ERROR(orMemcpy(memory, nullptr, 1, orMemcpyDefault), orErrorInvalidValue);
  CHECK_ERROR(orMemset(nullptr, 0, 1), orErrorInvalidValue);
  CHECK_ERROR(orMemset(memory + 100, 0, 1), orErrorIllegalAddress);
  CHECK_OK(orFree(next));
  CHECK_ERROR(orMemcpyAsync(next, host.data(), 1, orMemcpyDefault, nullptr), orErrorIllegalAddress);
  CHECK_CONTAINS(orGetLastErrorMessage(), "in no live allocation of device 0");
}

TEST(kernel_addresses_are_refused) {
  char* memory = device_malloc(100);
  char byte = 0;
  CHECK_ERROR(orMemcpy(&byte, kernel_address(memory), 1, orMemcpyDefault), orErrorInvalidValue);
  CHECK_ERROR(orMemset(kernel_address(memory), 0, 1), orErrorInvalidValue);
}

TEST(unregistered_memory_cannot_be_filled) {
  char byte = 'u';
  CHECK_ERROR(orMemset(&byte, 0, 1), orErrorInvalidValue);
  CHECK_ERROR(orMemsetAsync(&byte, 0, 1, nullptr), orErrorInvalidValue);
  CHECK_EQUAL(byte, 'u');
}

TEST(a_range_that_leaves_its_pinned_allocation_is_refused) {
  char* device = test::device_malloc(65536);
  char* pinned = test::host_malloc(64);
  const orStream_t stream = test::make_stream();
  for (const size_t offset : {size_t{0}, size_t{1}, size_t{63}}) {
    const size_t size = 65 - offset;
    CHECK_ERROR(orMemcpy(pinned + offset, device, size, orMemcpyDeviceToHost), orErrorInvalidValue);
    CHECK_CONTAINS(orGetLastErrorMessage(), "bytes at offset " + std::to_string(offset) +
                                                " exceed their pinned allocation of 64 bytes");
    CHECK_ERROR(orMemcpy(device, pinned + offset, size, orMemcpyDefault), orErrorInvalidValue);
    CHECK_ERROR(orMemcpyAsync(pinned + offset, device, size, orMemcpyDefault, stream),
                orErrorInvalidValue);
    CHECK_ERROR(orMemcpyAsync(device, pinned + offset, size, orMemcpyDefault, stream),
                orErrorInvalidValue);
    CHECK_ERROR(orMemsetAsync(pinned + offset, 0, size, stream), orErrorInvalidValue);
    CHECK_OK(orMemcpyAsync(device, pinned + offset, size - 1, orMemcpyHostToDevice, stream));
  }
  CHECK_ERROR(orMemcpy(pinned, device, 65536, orMemcpyDeviceToHost), orErrorInvalidValue);
  CHECK_ERROR(orMemcpy(pinned, pinned, SIZE_MAX, orMemcpyHostToHost), orErrorInvalidValue);
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_OK(orStreamDestroy(stream));
  CHECK_OK(orFree(device));
  CHECK_OK(orFreeHost(pinned));
}

TEST(a_range_that_wraps_around_is_refused) {
  char* device = test::device_malloc(64);
  char host[64];
  CHECK_ERROR(orMemcpy(host, host, SIZE_MAX, orMemcpyHostToHost), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "do not fit behind the address");
  CHECK_ERROR(orMemcpy(device, host, SIZE_MAX, orMemcpyHostToDevice), orErrorInvalidValue);
  CHECK_OK(orFree(device));
}

TEST(a_copy_on_a_failed_stream_returns_the_failure_once) {
  char* memory = device_malloc(10);
  char byte = 'b';
  CHECK_OK(orMemset(memory, 'm', 10));
  CHECK_OK(test::launch_failure(nullptr, orErrorNotSupported));
  CHECK_ERROR(orMemcpy(&byte, memory, 1, orMemcpyDefault), orErrorNotSupported);
  CHECK_EQUAL(byte, 'b');
  CHECK_OK(orMemcpy(&byte, memory, 1, orMemcpyDefault));
  CHECK_EQUAL(byte, 'm');
}

TEST(work_may_not_copy_and_wait_on_its_own_stream) {
  char* memory = device_malloc(10);
  orError_t copy_error = orSuccess;
  orError_t fill_error = orSuccess;
  CHECK_OK(test::launch(nullptr, "copies", [&] {
    char byte = 0;
    copy_error = orMemcpy(&byte, memory, 1, orMemcpyDefault);
    fill_error = orMemset(memory, 0, 1);
    return orSuccess;
  }));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK_EQUAL(copy_error, orErrorNotPermitted);
  CHECK_EQUAL(fill_error, orErrorNotPermitted);
}
