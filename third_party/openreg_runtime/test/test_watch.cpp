// Watched pinned memory: accesses of the host are detected, and the host continues.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <memory>
#include <thread>

#include "check.h"

using test::check_child;
using test::Gate;
using test::host_malloc;
using test::make_stream;

namespace {

const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

void write_byte(char* at, char value = 1) { *static_cast<volatile char*>(at) = value; }
char read_byte(const char* at) { return *static_cast<const volatile char*>(at); }

// A watch that counts what it sees.
struct Watch {
  Watch(char* begin, size_t size, bool is_written) {
    CHECK_OK(orWatchAdd(&number, begin, size, is_written ? 1 : 0, &see, this));
  }
  ~Watch() { end(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void end() {
    if (number != 0) CHECK_OK(orWatchRemove(number));
    number = 0;
  }

  static int see(void* self, const void* address, int is_write) {
    auto* watch = static_cast<Watch*>(self);
    watch->address = static_cast<const char*>(address);
    watch->is_write = is_write;
    watch->seen.fetch_add(1);
    return watch->is_declining ? 0 : 1;
  }

  unsigned long long number = 0;
  std::atomic<int> seen{0};
  const char* volatile address = nullptr;
  volatile int is_write = -1;
  bool is_declining = false;
};

orWatchCounts counts() {
  orWatchCounts counts;
  CHECK_OK(orWatchGetCounts(&counts));
  return counts;
}

char* watchable(size_t size) {
  CHECK_OK(orWatchStart());
  return host_malloc(size);
}

char* kernel_pointer(const char* pointer) {
  void* kernel = nullptr;
  CHECK_OK(orHostGetKernelPointer(&kernel, pointer));
  return static_cast<char*>(kernel);
}

}  // namespace

TEST(kernels_have_another_address_of_the_same_bytes) {
  char* memory = watchable(3 * page);
  char* kernel = kernel_pointer(memory + 10);
  CHECK(kernel != memory + 10);
  CHECK_EQUAL(read_byte(memory + 10), 0);
  write_byte(kernel, 7);
  CHECK_EQUAL(read_byte(memory + 10), 7);
  orPointerAttributes attributes;
  CHECK_OK(orPointerGetAttributes(&attributes, memory + 10));
  CHECK_EQUAL(attributes.type, orMemoryTypeHost);
  CHECK(attributes.allocationBase == memory);
  CHECK_EQUAL(attributes.allocationSize, 3 * page);
  CHECK_OK(orFreeHost(memory));
  CHECK_EQUAL(read_byte(watchable(3 * page) + 10), 0);
}

TEST(memory_has_one_address_while_watching_is_off) {
  char local = 0;
  CHECK(kernel_pointer(&local) == &local);
  char* memory = host_malloc(100);
  CHECK(kernel_pointer(memory) == memory);
  CHECK_OK(orWatchStart());
  char* second = host_malloc(100);
  CHECK(kernel_pointer(second) != second);
  CHECK_OK(orWatchStop());
  char* third = host_malloc(100);
  CHECK(kernel_pointer(third) == third);
  for (char* each : {memory, second, third}) CHECK_OK(orFreeHost(each));
}

TEST(memory_from_before_cannot_be_watched) {
  char* memory = host_malloc(100);
  CHECK_OK(orWatchStart());
  Watch watch(memory, 100, true);
  CHECK_EQUAL(watch.number, 0u);
  write_byte(memory);
  CHECK_EQUAL(watch.seen, 0);
}

TEST(a_write_to_what_a_stream_reads_is_seen_once_and_happens) {
  char* memory = watchable(100);
  write_byte(memory + 20, 5);
  Watch watch(memory + 16, 16, false);
  CHECK(watch.number != 0);
  CHECK_EQUAL(read_byte(memory + 20), 5);
  CHECK_EQUAL(watch.seen, 0);
  write_byte(memory + 20, 6);
  CHECK_EQUAL(watch.seen, 1);
  CHECK(watch.address == memory + 20);
  CHECK_EQUAL(watch.is_write, 1);
  CHECK_EQUAL(read_byte(memory + 20), 6);
  write_byte(memory + 21, 7);
  CHECK_EQUAL(watch.seen, 1);
  CHECK_EQUAL(counts().beside, 0u);
}

TEST(a_read_of_what_a_stream_writes_is_seen) {
  char* memory = watchable(100);
  Watch watch(memory, 100, true);
  CHECK_EQUAL(read_byte(memory + 99), 0);
  CHECK_EQUAL(watch.seen, 1);
  CHECK(watch.address == memory + 99);
  CHECK_EQUAL(watch.is_write, 0);
}

TEST(a_write_to_what_a_stream_writes_is_seen_as_one) {
  char* memory = watchable(100);
  Watch watch(memory, 100, true);
  write_byte(memory + 99);
  CHECK_EQUAL(watch.seen, 1);
  CHECK_EQUAL(watch.is_write, 1);
}

TEST(an_access_is_told_apart_on_a_page_that_no_one_may_use) {
  char* memory = watchable(page);
  Watch writing(memory + 100, 100, true);
  Watch reading(memory, 100, false);
  CHECK_EQUAL(read_byte(memory), 0);
  CHECK_EQUAL(reading.seen, 0);
  CHECK_OK(orWatchRearm());
  write_byte(memory);
  CHECK_EQUAL(reading.seen, 1);
  CHECK_EQUAL(reading.is_write, 1);
}

TEST(an_access_to_many_pages_is_seen_at_its_first_watched_byte) {
  char* memory = watchable(4 * page);
  Watch watch(memory + page, 2 * page, false);
  std::memset(memory, 1, 4 * page);
  CHECK_EQUAL(watch.seen, 1);
  CHECK(watch.address == memory + page);
  for (size_t i = 0; i < 4 * page; ++i) CHECK_EQUAL(memory[i], 1);
}

TEST(bytes_beside_the_watched_ones_are_counted_and_not_seen) {
  char* memory = watchable(page);
  Watch watch(memory + 100, 100, false);
  write_byte(memory + 99);
  CHECK_EQUAL(counts().beside, 1u);
  write_byte(memory + 200);  // the page is open
  CHECK_EQUAL(counts().beside, 1u);
  CHECK_EQUAL(watch.seen, 0);
}

TEST(pages_that_were_opened_are_watched_again_when_asked_for) {
  char* memory = watchable(page);
  Watch watch(memory + 100, 100, false);
  write_byte(memory);
  CHECK_OK(orWatchRearm());
  write_byte(memory + 100);
  CHECK_EQUAL(watch.seen, 1);
  CHECK_OK(orWatchRearm());
  write_byte(memory + 101);
  CHECK_EQUAL(watch.seen, 1);
}

TEST(a_new_watch_watches_an_opened_page_again) {
  char* memory = watchable(page);
  Watch first(memory, 100, false);
  write_byte(memory + 100);
  Watch second(memory + 100, 100, false);
  write_byte(memory);
  CHECK_EQUAL(first.seen, 1);
}

TEST(a_watch_that_ends_gives_the_access_back) {
  char* memory = watchable(3 * page);
  Watch watch(memory, 3 * page, true);
  watch.end();
  std::memset(memory, 1, 3 * page);
  CHECK_EQUAL(watch.seen, 0);
  CHECK_EQUAL(counts().beside, 0u);
  CHECK_EQUAL(counts().watches, 0u);
}

TEST(watches_of_one_page_do_not_end_each_other) {
  char* memory = watchable(page);
  Watch reading(memory, 100, false);
  {
    Watch writing(memory + 100, 100, true);
    CHECK_EQUAL(read_byte(memory), 0);  // beside: no one may read the page
    CHECK_EQUAL(counts().beside, 1u);
  }
  CHECK_OK(orWatchRearm());
  CHECK_EQUAL(read_byte(memory), 0);
  CHECK_EQUAL(counts().beside, 1u);
  CHECK_EQUAL(reading.seen, 0);
  write_byte(memory);
  CHECK_EQUAL(reading.seen, 1);
}

TEST(all_watches_of_a_byte_see_the_access) {
  char* memory = watchable(page);
  Watch first(memory, 100, false);
  Watch second(memory + 50, 100, false);
  Watch third(memory + 100, 100, false);
  write_byte(memory + 60);
  CHECK_EQUAL(first.seen, 1);
  CHECK_EQUAL(second.seen, 1);
  CHECK_EQUAL(third.seen, 0);
  CHECK_EQUAL(counts().beside, 1u);  // the third lost its page
}

TEST(an_observer_may_say_that_other_bytes_are_meant) {
  char* memory = watchable(page);
  Watch watch(memory, 100, false);
  watch.is_declining = true;
  write_byte(memory + 3);
  CHECK_EQUAL(watch.seen, 1);
  CHECK_EQUAL(counts().beside, 1u);
  watch.is_declining = false;
  CHECK_OK(orWatchRearm());
  write_byte(memory + 4);
  CHECK_EQUAL(watch.seen, 2);
}

TEST(copies_and_fills_use_the_address_of_kernels) {
  const orStream_t stream = make_stream();
  char* memory = watchable(2 * page);
  char* device = test::device_malloc(2 * page);
  std::memset(memory, 3, 2 * page);
  {
    Watch watch(memory, 2 * page, false);
    CHECK_OK(orMemcpyAsync(device, memory, 2 * page, orMemcpyDefault, stream));
    CHECK_OK(orStreamSynchronize(stream));
    Watch written(memory, 2 * page, true);
    CHECK_OK(orMemsetAsync(memory, 0, 2 * page, stream));
    CHECK_OK(orMemcpyAsync(memory, device, page, orMemcpyDefault, stream));
    CHECK_OK(orStreamSynchronize(stream));
    CHECK_OK(orMemcpy(memory, device, 1, orMemcpyDefault));
    CHECK_EQUAL(watch.seen + written.seen, 0);
    CHECK_EQUAL(counts().beside, 0u);
  }
  CHECK_EQUAL(read_byte(memory + page - 1), 3);
  CHECK_EQUAL(read_byte(memory + page), 0);
}

TEST(the_address_of_kernels_is_no_argument_of_a_copy) {
  char* memory = watchable(page);
  char* device = test::device_malloc(page);
  CHECK_ERROR(orMemcpy(device, kernel_pointer(memory), page, orMemcpyDefault), orErrorInvalidValue);
  CHECK_CONTAINS(orGetLastErrorMessage(), "got the kernel address");
}

TEST(a_kernel_at_the_hosts_address_is_not_the_host) {
  const orStream_t stream = make_stream();
  char* memory = watchable(page);
  Watch watch(memory, page, true);
  CHECK_OK(test::launch(stream, "at the host's address", [memory] {
    write_byte(memory);
    return orSuccess;
  }));
  CHECK_OK(orStreamSynchronize(stream));
  CHECK_EQUAL(watch.seen, 0);
  CHECK_EQUAL(counts().beside, 1u);
}

TEST(a_free_ends_the_watches_of_the_memory) {
  char* memory = watchable(page);
  Watch watch(memory, page, true);
  CHECK_OK(orFreeHost(memory));
  char* again = watchable(page);
  CHECK(again == memory);
  CHECK_EQUAL(read_byte(again), 0);
  CHECK_EQUAL(watch.seen, 0);
  CHECK_EQUAL(counts().beside, 0u);
}

TEST(a_system_call_into_watched_bytes_fails_and_is_not_seen) {
  char* memory = watchable(page);
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  Watch watch(memory, page, false);
  CHECK_EQUAL(write(ends[1], memory, 1), 1);  // the system may read
  CHECK_EQUAL(read(ends[0], memory, 1), -1);
  CHECK_EQUAL(errno, EFAULT);
  CHECK_EQUAL(watch.seen, 0);
  watch.end();
  CHECK_EQUAL(read(ends[0], memory, 1), 1);
}

TEST(thousands_of_watches_are_possible) {
  constexpr size_t count = 3000;
  std::vector<char*> memory;
  std::vector<std::unique_ptr<Watch>> watches;
  for (size_t i = 0; i < count; ++i) {
    memory.push_back(watchable(100 + i));
    watches.push_back(std::make_unique<Watch>(memory.back(), 100, i % 2 == 0));
    CHECK(watches.back()->number != 0);
  }
  for (char* each : memory) write_byte(each + 1);
  for (const auto& watch : watches) CHECK_EQUAL(watch->seen, 1);
  watches.clear();
  for (char* each : memory) CHECK_OK(orFreeHost(each));
}

// The thread sanitizer ends a process in which it cannot map memory of its own.
#ifndef __SANITIZE_THREAD__
TEST(without_room_for_a_watch_there_is_none_and_nothing_hangs) {
  char* memory = watchable(64 * page);
  Watch first(memory, 64 * page, false);
  Watch second(memory + 32 * page, page, true);
  // Each second page another protection, until the system has no room for one more mapping.
  constexpr size_t pages = 100'000;
  char* others = static_cast<char*>(
      mmap(nullptr, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  size_t at = 0;
  while (at < pages && mprotect(others + at * page, page, PROT_READ) == 0) at += 2;
  CHECK(at < pages);
  CHECK_EQUAL(errno, ENOMEM);
  Watch third(memory + 8 * page, page, true);
  CHECK_EQUAL(third.number, 0u);
  write_byte(memory + 4 * page);
  write_byte(memory + 32 * page);
  CHECK(counts().lost > 0);
  munmap(others, pages * page);
  CHECK_EQUAL(first.seen, 1);
}
#endif

TEST(threads_may_watch_and_touch_at_the_same_time) {
  constexpr int thread_count = 4;
  char* memory = watchable(thread_count * 100);  // one page for all
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([mine = memory + i * 100, i] {
      for (int round = 0; round < 200; ++round) {
        Watch watch(mine, 100, i % 2 == 0);
        write_byte(mine + round % 100);
        CHECK(watch.seen <= 1);  // none, if another thread has just opened the page
        CHECK_OK(orWatchRearm());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(counts().watches, 0u);
  std::memset(memory, 0, thread_count * 100);
}

TEST(a_forked_child_has_the_memory_for_itself) {
  char* memory = watchable(2 * page);
  write_byte(memory, 1);
  Watch watch(memory, 2 * page, true);
  check_child([&] {
    CHECK_EQUAL(read_byte(memory), 1);
    write_byte(memory, 2);
    write_byte(memory + page, 2);
    CHECK_EQUAL(watch.seen, 0);
    // It is no user of a device, and may become one.
    CHECK(kernel_pointer(memory) == memory);
    char* device = test::device_malloc(page);
    CHECK_OK(orMemcpy(device, memory, page, orMemcpyDefault));
    Watch own(memory, page, true);
    CHECK_EQUAL(own.number, 0u);
    CHECK_OK(orFreeHost(memory));
    CHECK(kernel_pointer(watchable(page)) != nullptr);
    check_child([&] { write_byte(memory, 3); });
  });
  watch.end();
  CHECK_EQUAL(read_byte(memory), 1);
  CHECK_EQUAL(read_byte(memory + page), 0);
}

TEST(a_child_forked_by_a_user_of_a_device_has_it_as_well) {
  char* device = test::device_malloc(page);
  char* memory = watchable(page);
  Watch watch(memory, page, true);
  check_child([&] {
    write_byte(memory, 2);
    CHECK_ERROR(orWatchStart(), orErrorForked);
    CHECK_ERROR(orWatchStop(), orErrorForked);
    CHECK_ERROR(orWatchRearm(), orErrorForked);
    CHECK_ERROR(orWatchRemove(watch.number), orErrorForked);
    orWatchCounts counts;
    CHECK_ERROR(orWatchGetCounts(&counts), orErrorForked);
    unsigned long long number = 0;
    CHECK_ERROR(orWatchAdd(&number, memory, 1, 0, &Watch::see, &watch), orErrorForked);
    CHECK(kernel_pointer(memory) == memory);
    watch.number = 0;
  });
  CHECK_EQUAL(watch.seen, 0);
  CHECK_OK(orFree(device));
}

TEST(actions_of_others_that_come_later_do_not_get_watched_faults) {
  char* memory = watchable(page);
  std::signal(SIGSEGV, [](int) { _exit(5); });
  Watch watch(memory, page, true);
  write_byte(memory);
  CHECK_EQUAL(watch.seen, 1);
}

TEST(actions_of_others_get_all_other_faults_the_latest_first) {
  const test::ChildResult result = test::run_child([] {
    std::signal(SIGSEGV, [](int) {
      CHECK(write(STDERR_FILENO, "first\n", 6) > 0);
      _exit(5);
    });
    char* memory = watchable(page);
    // As Python's faulthandler, which hands on by installing what it replaced and raising the
    // signal again.
    static struct sigaction replaced;
    struct sigaction later = {};
    later.sa_flags = SA_NODEFER | SA_ONSTACK;
    later.sa_handler = [](int) {
      CHECK(write(STDERR_FILENO, "second\n", 7) > 0);
      CHECK_EQUAL(sigaction(SIGSEGV, &replaced, nullptr), 0);
      raise(SIGSEGV);
    };
    CHECK_EQUAL(sigaction(SIGSEGV, &later, &replaced), 0);
    Watch watch(memory, page, true);
    write_byte(memory);
    CHECK_EQUAL(watch.seen, 1);
    write_byte(reinterpret_cast<char*>(uintptr_t{4096}));
  });
  CHECK_EQUAL(WEXITSTATUS(result.status), 5);
  CHECK_EQUAL(result.error, "second\nfirst\n");
}

TEST(without_memory_protection_nothing_is_watched) {
  check_child([] {
    setenv("OPENREG_MEMORY_PROTECTION", "0", 1);
    char* memory = watchable(page);
    CHECK(kernel_pointer(memory) == memory);
    Watch watch(memory, page, true);
    CHECK_EQUAL(watch.number, 0u);
    write_byte(memory);
  });
}

TEST(bad_arguments_are_refused) {
  char* memory = watchable(page);
  unsigned long long number = 0;
  CHECK_ERROR(orWatchAdd(nullptr, memory, 1, 0, &Watch::see, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orWatchAdd(&number, nullptr, 1, 0, &Watch::see, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orWatchAdd(&number, memory, 0, 0, &Watch::see, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orWatchAdd(&number, memory, 1, 0, nullptr, nullptr), orErrorInvalidValue);
  CHECK_ERROR(orWatchRemove(1000), orErrorInvalidValue);
  CHECK_ERROR(orWatchGetCounts(nullptr), orErrorInvalidValue);
  CHECK_ERROR(orHostGetKernelPointer(nullptr, memory), orErrorInvalidValue);
}

TEST(sizes_beyond_all_memory_are_no_watchable_memory) {
  CHECK_OK(orWatchStart());
  char* memory = test::host_malloc(64);
  for (const size_t size : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4095, SIZE_MAX / 2}) {
    void* pointer = memory;
    CHECK_ERROR(orMallocHost(&pointer, size), orErrorMemoryAllocation);
    CHECK(pointer == memory);
    unsigned long long watch = 1;
    const auto observer = [](void*, const void*, int) { return 0; };
    CHECK_OK(orWatchAdd(&watch, memory, size, 1, observer, nullptr));
    CHECK_EQUAL(watch, 0u);
  }
  CHECK_OK(orFreeHost(memory));
}
