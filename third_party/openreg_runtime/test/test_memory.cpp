// Device allocations, pinned allocations, and attributes of pointers.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "check.h"

using test::device_malloc;
using test::host_malloc;
using test::kernel_address;

namespace {

orPointerAttributes attributes_of(const void* pointer) {
  orPointerAttributes attributes;
  CHECK_OK(orPointerGetAttributes(&attributes, pointer));
  return attributes;
}

size_t free_memory(int device) {
  size_t free_size = 0;
  size_t total_size = 0;
  CHECK_OK(orMemGetInfo(&free_size, &total_size, device));
  CHECK(free_size <= total_size);
  return free_size;
}

constexpr size_t page = OPENREG_MAPPING_GRANULARITY;

// Addresses of the current device.
char* reserve(size_t size) {
  void* memory = nullptr;
  CHECK_OK(orMemAddressReserve(&memory, size));
  return static_cast<char*>(memory);
}

size_t allocation_size(const char* memory) {
  const orPointerAttributes attributes = attributes_of(memory);
  return attributes.type == orMemoryTypeDevice ? attributes.allocationSize : 0;
}

char byte_at(const char* memory) {
  char byte = 0;
  CHECK_OK(orMemcpy(&byte, memory, 1, orMemcpyDeviceToHost));
  return byte;
}

}  // namespace

TEST(a_size_of_0_gives_null) {
  void* memory = &memory;
  CHECK_OK(orMalloc(&memory, 0));
  CHECK(memory == nullptr);
  memory = &memory;
  CHECK_OK(orMallocHost(&memory, 0));
  CHECK(memory == nullptr);
}

TEST(null_may_be_freed) {
  CHECK_OK(orFree(nullptr));
  CHECK_OK(orFreeHost(nullptr));
}

TEST(null_results_are_refused) {
  size_t size = 0;
  CHECK_ERROR(orMalloc(nullptr, 1), orErrorInvalidValue);
  CHECK_ERROR(orMallocHost(nullptr, 1), orErrorInvalidValue);
  CHECK_ERROR(orMemAddressReserve(nullptr, OPENREG_MAPPING_GRANULARITY), orErrorInvalidValue);
  CHECK_ERROR(orMemGetInfo(&size, nullptr, 0), orErrorInvalidValue);
  CHECK_ERROR(orMemGetInfo(nullptr, &size, 0), orErrorInvalidValue);
  CHECK_ERROR(orPointerGetAttributes(nullptr, &size), orErrorInvalidValue);
  CHECK_ERROR(orGetKernelOffset(nullptr), orErrorInvalidValue);
  void* begin = nullptr;
  CHECK_ERROR(orDeviceGetAddressRange(nullptr, &size, 0), orErrorInvalidValue);
  CHECK_ERROR(orDeviceGetAddressRange(&begin, nullptr, 0), orErrorInvalidValue);
}

TEST(all_memory_of_a_device_lies_in_its_range_of_addresses) {
  void* begins[2];
  for (int device : {0, 1}) {
    void*& begin = begins[device];
    size_t size = 0;
    size_t free_size = 0;
    size_t total_size = 0;
    CHECK_OK(orDeviceGetAddressRange(&begin, &size, device));
    CHECK_OK(orMemGetInfo(&free_size, &total_size, device));
    CHECK(size > 2 * total_size);
    CHECK_OK(orSetDevice(device));
    char* first = device_malloc(1);
    CHECK(first == begin);
    const size_t rest = total_size - OPENREG_MEMORY_ALIGNMENT;
    char* last = device_malloc(rest);
    CHECK(last + rest == static_cast<char*>(begin) + total_size);
    char* reserved = reserve(total_size);
    CHECK(reserved >= last + rest);
    CHECK(reserved + total_size <= static_cast<char*>(begin) + size);
    CHECK_OK(orMemAddressFree(reserved));
  }
  CHECK(begins[0] != begins[1]);
  size_t size = 0;
  CHECK_ERROR(orDeviceGetAddressRange(begins, &size, 2), orErrorInvalidDevice);
  CHECK_ERROR(orDeviceGetAddressRange(begins, &size, -1), orErrorInvalidDevice);
}

TEST(reserved_addresses_have_memory_where_it_is_mapped) {
  const size_t before = free_memory(0);
  char* memory = reserve(8 * page);
  CHECK_EQUAL(free_memory(0), before);
  CHECK_ERROR(orMemset(memory, 1, 1), orErrorIllegalAddress);
  CHECK_OK(orMemMap(memory + page, 2 * page));
  CHECK_EQUAL(free_memory(0), before - 2 * page);
  CHECK_EQUAL(allocation_size(memory), size_t{0});
  CHECK_EQUAL(allocation_size(memory + 3 * page), size_t{0});
  CHECK_EQUAL(allocation_size(memory + 2 * page), 2 * page);
  CHECK_OK(orMemset(memory + page, 1, 2 * page));
  CHECK_ERROR(orMemset(memory + page, 1, 2 * page + 1), orErrorInvalidValue);
  CHECK_ERROR(orMemset(memory + 3 * page, 1, 1), orErrorIllegalAddress);
  CHECK_OK(orMemUnmap(memory + page, 2 * page));
  CHECK_OK(orMemAddressFree(memory));
  CHECK_EQUAL(free_memory(0), before);
}

TEST(mapped_memory_grows_to_both_sides_and_shrinks_anywhere) {
  char* memory = reserve(8 * page);
  for (const size_t i : {3, 5, 4, 2, 6}) {
    CHECK_OK(orMemMap(memory + i * page, page));
  }
  CHECK_EQUAL(allocation_size(memory + 4 * page), 5 * page);
  CHECK_OK(orMemUnmap(memory + 4 * page, page));
  CHECK_EQUAL(allocation_size(memory + 3 * page), 2 * page);
  CHECK_EQUAL(allocation_size(memory + 4 * page), size_t{0});
  CHECK_EQUAL(allocation_size(memory + 5 * page), 2 * page);
  CHECK_OK(orMemUnmap(memory + 2 * page, page));
  CHECK_OK(orMemUnmap(memory + 6 * page, page));
  CHECK_EQUAL(allocation_size(memory + 3 * page), page);
  CHECK_EQUAL(allocation_size(memory + 5 * page), page);
  CHECK_OK(orMemMap(memory + 4 * page, page));
  CHECK_OK(orMemUnmap(memory + 3 * page, 3 * page));
  CHECK_OK(orMemAddressFree(memory));
}

TEST(neighboring_reservations_are_different_allocations) {
  char* first = reserve(2 * page);
  char* second = reserve(2 * page);
  CHECK(second == first + 2 * page);
  CHECK_OK(orMemMap(second, 2 * page));
  CHECK_OK(orMemMap(first, 2 * page));
  CHECK_EQUAL(allocation_size(first), 2 * page);
  CHECK_EQUAL(allocation_size(second), 2 * page);
  CHECK_ERROR(orMemUnmap(first, 4 * page), orErrorInvalidValue);
  CHECK_OK(orMemUnmap(first, 2 * page));
  CHECK_OK(orMemUnmap(second, 2 * page));
  CHECK_OK(orMemAddressFree(first));
  CHECK(reserve(page) == first);
  CHECK_OK(orMemAddressFree(first));
  CHECK_OK(orMemAddressFree(second));
}

TEST(mapped_memory_reads_as_zeros) {
  char* memory = reserve(2 * page);
  CHECK_OK(orMemMap(memory, 2 * page));
  CHECK_OK(orMemset(memory, 1, 2 * page));
  CHECK_OK(orMemUnmap(memory + page, page));
  CHECK_OK(orMemMap(memory + page, page));
  CHECK_EQUAL(byte_at(memory + page - 1), 1);
  CHECK_EQUAL(byte_at(memory + page), 0);
  CHECK_EQUAL(byte_at(memory + 2 * page - 1), 0);
  CHECK_OK(orMemUnmap(memory, 2 * page));
  CHECK_OK(orMemAddressFree(memory));
}

TEST(unmapping_waits_for_the_device) {
  char* memory = reserve(page);
  CHECK_OK(orMemMap(memory, page));
  std::atomic<bool> has_run{false};
  test::Gate gate;
  gate.hold(nullptr);
  CHECK_OK(orLaunchHostFunc(
      nullptr, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &has_run));
  std::thread opener([&] { gate.open(); });
  CHECK_OK(orMemUnmap(memory, page));
  CHECK(has_run);
  opener.join();
  CHECK_OK(orMemAddressFree(memory));
}

TEST(mapped_memory_and_allocations_share_the_memory_of_the_device) {
  size_t free_size = 0;
  size_t total_size = 0;
  CHECK_OK(orMemGetInfo(&free_size, &total_size, 0));
  const size_t pages = free_size / page;
  char* memory = reserve((pages + 1) * page);
  CHECK_ERROR(orMemMap(memory, (pages + 1) * page), orErrorMemoryAllocation);
  CHECK_EQUAL(free_memory(0), free_size);
  CHECK_OK(orMemMap(memory, pages * page));
  CHECK_EQUAL(free_memory(0), free_size - pages * page);
  void* other = nullptr;
  CHECK_ERROR(orMalloc(&other, page), orErrorMemoryAllocation);
  CHECK_OK(orMemUnmap(memory, page));
  CHECK_OK(orMalloc(&other, page));
  CHECK_ERROR(orMemMap(memory, page), orErrorMemoryAllocation);
  CHECK_OK(orFree(other));
  CHECK_OK(orMemUnmap(memory + page, (pages - 1) * page));
  CHECK_OK(orMemAddressFree(memory));
}

TEST(bad_ranges_of_reserved_addresses_are_refused) {
  void* pointer = nullptr;
  CHECK_OK(orMemAddressFree(nullptr));
  CHECK_ERROR(orMemAddressReserve(&pointer, 0), orErrorInvalidValue);
  CHECK_ERROR(orMemAddressReserve(&pointer, page + 1), orErrorInvalidValue);
  CHECK_ERROR(orMemAddressReserve(&pointer, SIZE_MAX / page * page), orErrorMemoryAllocation);
  char* memory = reserve(2 * page);
  CHECK_ERROR(orMemMap(memory, 0), orErrorInvalidValue);
  CHECK_ERROR(orMemMap(memory, page / 2), orErrorInvalidValue);
  CHECK_ERROR(orMemMap(memory + 512, page), orErrorInvalidValue);
  CHECK_ERROR(orMemMap(memory, 3 * page), orErrorInvalidValue);
  CHECK_ERROR(orMemUnmap(memory, page), orErrorInvalidValue);
  CHECK_OK(orMemMap(memory + page, page));
  CHECK_ERROR(orMemMap(memory, 2 * page), orErrorInvalidValue);
  CHECK_ERROR(orMemMap(memory + page, page), orErrorInvalidValue);
  CHECK_ERROR(orMemUnmap(memory, 2 * page), orErrorInvalidValue);
  CHECK_ERROR(orMemAddressFree(memory), orErrorInvalidValue);
  CHECK_ERROR(orMemAddressFree(memory + page), orErrorInvalidValue);
  CHECK_ERROR(orFree(memory + page), orErrorInvalidValue);
  CHECK_OK(orMemUnmap(memory + page, page));
  CHECK_OK(orMemAddressFree(memory));
  CHECK_ERROR(orMemAddressFree(memory), orErrorInvalidValue);
  char* allocated = device_malloc(page);
  CHECK_ERROR(orMemAddressFree(allocated), orErrorInvalidValue);
  CHECK_OK(orFree(allocated));
}

TEST(memory_is_aligned_and_belongs_to_the_current_device) {
  for (int device : {0, 1}) {
    CHECK_OK(orSetDevice(device));
    char* memory = device_malloc(1000);
    CHECK_EQUAL(reinterpret_cast<uintptr_t>(memory) % OPENREG_MEMORY_ALIGNMENT, uintptr_t{0});
    const orPointerAttributes attributes = attributes_of(memory + 999);
    CHECK_EQUAL(attributes.type, orMemoryTypeDevice);
    CHECK_EQUAL(attributes.device, device);
    CHECK(attributes.allocationBase == memory);
    CHECK_EQUAL(attributes.allocationSize, size_t{1000});
    CHECK_EQUAL(attributes_of(memory + 1000).type, orMemoryTypeUnregistered);
  }
}

TEST(memory_can_be_freed_from_another_current_device) {
  char* memory = device_malloc(1000);
  CHECK_OK(orSetDevice(1));
  const size_t before = free_memory(0);
  CHECK_OK(orFree(memory));
  CHECK_EQUAL(free_memory(0), before + 1024);
}

TEST(freeing_what_is_not_the_start_of_an_allocation_is_refused) {
  char* memory = device_malloc(1000);
  char on_stack = 0;
  CHECK_ERROR(orFree(memory + 1), orErrorInvalidValue);
  CHECK_ERROR(orFree(memory + 512 * 1024), orErrorInvalidValue);
  CHECK_ERROR(orFree(&on_stack), orErrorInvalidValue);
  CHECK_ERROR(orFree(kernel_address(memory)), orErrorInvalidValue);
  CHECK_OK(orFree(memory));
  CHECK_ERROR(orFree(memory), orErrorInvalidValue);
  char* pinned = host_malloc(10);
  CHECK_ERROR(orFree(pinned), orErrorInvalidValue);
  CHECK_ERROR(orFreeHost(pinned + 1), orErrorInvalidValue);
  CHECK_OK(orFreeHost(pinned));
  CHECK_ERROR(orFreeHost(pinned), orErrorInvalidValue);
}

TEST(registered_memory_counts_as_pinned) {
  std::string memory(1000, 'm');
  char* begin = memory.data() + 100;
  CHECK_OK(orHostRegister(begin, 800));
  for (const char* inside : {begin, begin + 799}) {
    const orPointerAttributes attributes = attributes_of(inside);
    CHECK_EQUAL(attributes.type, orMemoryTypeHost);
    CHECK(attributes.allocationBase == begin);
    CHECK_EQUAL(attributes.allocationSize, size_t{800});
  }
  CHECK_EQUAL(attributes_of(begin - 1).type, orMemoryTypeUnregistered);
  CHECK_EQUAL(attributes_of(begin + 800).type, orMemoryTypeUnregistered);
  CHECK_ERROR(orFreeHost(begin), orErrorInvalidValue);
  CHECK_ERROR(orHostUnregister(begin + 1), orErrorInvalidValue);
  CHECK_OK(orHostUnregister(begin));
  CHECK_ERROR(orHostUnregister(begin), orErrorInvalidValue);
  CHECK_EQUAL(attributes_of(begin).type, orMemoryTypeUnregistered);
}

TEST(memory_that_is_pinned_or_of_a_device_is_not_registered) {
  std::string memory(1000, 'm');
  CHECK_ERROR(orHostRegister(nullptr, 1), orErrorInvalidValue);
  CHECK_ERROR(orHostRegister(memory.data(), 0), orErrorInvalidValue);
  CHECK_ERROR(orHostRegister(memory.data(), SIZE_MAX), orErrorInvalidValue);
  CHECK_OK(orHostRegister(memory.data() + 100, 100));
  CHECK_ERROR(orHostRegister(memory.data() + 199, 1), orErrorInvalidValue);
  CHECK_ERROR(orHostRegister(memory.data(), 101), orErrorInvalidValue);
  CHECK_OK(orHostRegister(memory.data(), 100));
  CHECK_OK(orHostRegister(memory.data() + 200, 1));
  char* device = device_malloc(100);
  char* pinned = host_malloc(100);
  for (char* other : {device, kernel_address(device), pinned}) {
    CHECK_ERROR(orHostRegister(other, 10), orErrorInvalidValue);
  }
  CHECK_ERROR(orHostUnregister(pinned), orErrorInvalidValue);
}

TEST(memory_runs_out_and_comes_back) {
  CHECK_EQUAL(setenv("OPENREG_DEVICE_MEMORY", "32MiB", 1), 0);
  CHECK_EQUAL(free_memory(0), size_t{32} << 20);
  char* first = device_malloc(size_t{20} << 20);
  CHECK_EQUAL(free_memory(0), size_t{12} << 20);
  CHECK_EQUAL(free_memory(1), size_t{32} << 20);
  void* second = nullptr;
  CHECK_ERROR(orMalloc(&second, size_t{13} << 20), orErrorMemoryAllocation);
  CHECK(second == nullptr);
  CHECK_CONTAINS(orGetLastErrorMessage(), "12582912 of 33554432 are free");
  CHECK_ERROR(orMalloc(&second, SIZE_MAX), orErrorMemoryAllocation);
  CHECK_OK(orSetDevice(1));
  CHECK_OK(orFree(device_malloc(size_t{32} << 20)));
  CHECK_OK(orSetDevice(0));
  CHECK_OK(orFree(first));
  CHECK_OK(orFree(device_malloc(size_t{32} << 20)));
}

TEST(host_memory_runs_out) {
  void* memory = nullptr;
  CHECK_ERROR(orMallocHost(&memory, SIZE_MAX / 4), orErrorMemoryAllocation);
}

TEST(fresh_memory_reads_as_zeros_after_reuse) {
  constexpr size_t size = 10'000;
  for (int round = 0; round < 3; ++round) {
    char* memory = device_malloc(size);
    std::string host(size, 'x');
    CHECK_OK(orMemcpy(host.data(), memory, size, orMemcpyDeviceToHost));
    CHECK(host == std::string(size, '\0'));
    CHECK_OK(orMemset(memory, 0xff, size));
    CHECK_OK(orFree(memory));
  }
}

TEST(freeing_waits_for_the_device_and_leaves_failures) {
  char* memory = device_malloc(1);
  const orStream_t stream = test::make_stream();
  test::Gate gate;
  gate.hold(stream);
  bool ran = false;
  CHECK_OK(test::launch(stream, "mark", [&] { return ran = true, orSuccess; }));
  CHECK_OK(test::launch_failure(stream, orErrorNotSupported));
  std::thread opener([&] { gate.open(); });
  CHECK_OK(orFree(memory));
  CHECK(ran);
  opener.join();
  CHECK_ERROR(orStreamQuery(stream), orErrorNotSupported);
}

TEST(the_kernel_address_shows_the_same_bytes) {
  for (int device : {0, 1}) {
    CHECK_OK(orSetDevice(device));
    char* memory = device_malloc(4096);
    CHECK(kernel_address(memory) != memory);
    kernel_address(memory)[7] = 'k';
    char byte = 0;
    CHECK_OK(orMemcpy(&byte, memory + 7, 1, orMemcpyDeviceToHost));
    CHECK_EQUAL(byte, 'k');
  }
}

TEST(without_protection_the_host_reads_and_writes_device_memory) {
  CHECK_EQUAL(setenv("OPENREG_MEMORY_PROTECTION", "0", 1), 0);
  char* memory = device_malloc(4096);
  CHECK(kernel_address(memory) == memory);
  memory[7] = 'h';
  char byte = 0;
  CHECK_OK(orMemcpy(&byte, memory + 7, 1, orMemcpyDeviceToHost));
  CHECK_EQUAL(byte, 'h');
  CHECK_OK(orFree(memory));
  CHECK_EQUAL(device_malloc(4096)[7], '\0');
}

TEST(pinned_memory_is_known) {
  CHECK_OK(orSetDevice(1));
  char* pinned = host_malloc(100);
  CHECK_OK(orSetDevice(0));
  pinned[99] = 1;
  const orPointerAttributes attributes = attributes_of(pinned + 99);
  CHECK_EQUAL(attributes.type, orMemoryTypeHost);
  CHECK_EQUAL(attributes.device, 1);
  CHECK(attributes.allocationBase == pinned);
  CHECK_EQUAL(attributes.allocationSize, size_t{100});
  CHECK_EQUAL(attributes_of(pinned + 100).type, orMemoryTypeUnregistered);
  CHECK_OK(orFreeHost(pinned));
  CHECK_EQUAL(attributes_of(pinned).type, orMemoryTypeUnregistered);
}

TEST(any_pointer_has_attributes) {
  device_malloc(1);
  int on_stack = 0;
  for (const void* pointer :
       {static_cast<const void*>(&on_stack), static_cast<const void*>(nullptr),
        reinterpret_cast<const void*>(UINTPTR_MAX), reinterpret_cast<const void*>(uintptr_t{1})}) {
    const orPointerAttributes attributes = attributes_of(pointer);
    CHECK_EQUAL(attributes.type, orMemoryTypeUnregistered);
    CHECK_EQUAL(attributes.device, -1);
    CHECK(attributes.allocationBase == nullptr);
    CHECK_EQUAL(attributes.allocationSize, size_t{0});
  }
}

TEST(a_free_of_pinned_memory_waits_for_the_work_that_may_use_it) {
  constexpr size_t size = size_t{1} << 20;
  char* pinned = host_malloc(size);
  char* memory = device_malloc(size);
  const orStream_t stream = test::make_stream(1);
  std::memset(pinned, 'p', size);
  test::Gate gate;
  gate.hold(stream);
  CHECK_OK(orMemcpyAsync(memory, pinned, size, orMemcpyHostToDevice, stream));
  std::atomic<bool> is_open{false};
  gate.wait_until_reached();
  std::thread opener([&] {
    // The other thread is in the call, or about to be: either way it must see the copy done.
    is_open = true;
    gate.open();
  });
  CHECK_OK(orFreeHost(pinned));
  CHECK(is_open);
  CHECK_OK(orStreamQuery(stream));
  opener.join();
  std::string host(size, '?');
  CHECK_OK(orMemcpy(host.data(), memory, size, orMemcpyDeviceToHost));
  CHECK(host == std::string(size, 'p'));
  CHECK_OK(orFree(memory));
}

TEST(a_free_of_unused_pinned_memory_waits_for_nothing) {
  char* used = host_malloc(64);
  char* unused = host_malloc(64);
  char* unused_too = host_malloc(64);
  char* memory = device_malloc(64);
  test::Gate gate;
  gate.hold(nullptr);
  CHECK_OK(orMemcpyAsync(memory, used, 64, orMemcpyHostToDevice, nullptr));
  CHECK_OK(orFreeHostUnused(unused));  // would never return if it waited
  CHECK_EQUAL(attributes_of(unused).type, orMemoryTypeUnregistered);
  CHECK_ERROR(orFreeHostUnused(unused), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "orFreeHostUnused");
  CHECK_ERROR(orFreeHostUnused(used + 1), orErrorInvalidValue);
  CHECK_OK(orFreeHostUnused(nullptr));
  gate.open();
  orError_t error = orErrorUnknown;
  CHECK_OK(test::launch(nullptr, "frees",
                        [&] { return error = orFreeHostUnused(unused_too), orSuccess; }));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK_OK(error);
  CHECK_OK(orFreeHost(used));
  CHECK_OK(orFree(memory));
}

TEST(work_may_not_free_pinned_memory) {
  char* pinned = host_malloc(64);
  orError_t error = orSuccess;
  CHECK_OK(test::launch(nullptr, "frees", [&] { return error = orFreeHost(pinned), orSuccess; }));
  CHECK_OK(orStreamSynchronize(nullptr));
  CHECK_EQUAL(error, orErrorNotPermitted);
  CHECK_OK(orFreeHost(pinned));
}
