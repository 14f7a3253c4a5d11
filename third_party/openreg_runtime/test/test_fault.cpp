// What happens when the host touches device memory.
#include <sys/mman.h>
#include <ucontext.h>

#include <csetjmp>
#include <csignal>

#include "check.h"

namespace {

// A volatile access that the compiler keeps.
void touch(char* memory) { *static_cast<volatile char*>(memory) = 1; }

std::string hex(const char* memory) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%zx", reinterpret_cast<size_t>(memory));
  return text;
}

// Checks that a child is killed by SIGSEGV, and returns what it wrote.
std::string error_of_faulting(const std::function<void()>& body) {
  const test::ChildResult result = test::run_child(body);
  CHECK(WIFSIGNALED(result.status));
  CHECK_EQUAL(WTERMSIG(result.status), SIGSEGV);
  return result.error;
}

void write_line(const char* text) { CHECK(write(STDERR_FILENO, text, strlen(text)) > 0); }

}  // namespace

TEST(the_message_names_address_device_allocation_and_remedy) {
  const std::string error = error_of_faulting([] {
    CHECK_OK(orSetDevice(1));
    char* memory = test::device_malloc(1000);
    std::cerr << hex(memory) << " " << hex(memory + 10) << "\n";
    touch(memory + 10);
  });
  const size_t space = error.find(' ');
  const size_t line_end = error.find('\n');
  const std::string base = error.substr(0, space);
  const std::string address = error.substr(space + 1, line_end - space - 1);
  CHECK_EQUAL(error.substr(line_end + 1),
              "openreg: the host touched device memory: address " + address +
                  ", device 1, allocation " + base +
                  " (size 1000 bytes) + offset 10; copy it to the host first "
                  "(or set OPENREG_MEMORY_PROTECTION=0 to debug)\n");
}

TEST(memory_that_is_not_allocated_is_named_as_such) {
  const std::string error = error_of_faulting([] {
    char* memory = test::device_malloc(1000);
    CHECK_OK(orFree(memory));
    touch(memory);
  });
  CHECK_CONTAINS(error, "device 0, in no live allocation; copy it");
}

TEST(other_faults_die_without_our_message) {
  const std::string error = error_of_faulting([] {
    test::device_malloc(1000);
    touch(reinterpret_cast<char*>(uintptr_t{4096}));
  });
  CHECK_EQUAL(error, "");
}

TEST(a_signal_sent_by_a_process_still_kills) {
  const std::string error = error_of_faulting([] {
    test::device_malloc(1000);
    raise(SIGSEGV);
  });
  CHECK_EQUAL(error, "");
}

TEST(an_earlier_handler_runs_after_the_message) {
  const test::ChildResult result = test::run_child([] {
    signal(SIGSEGV, [](int) {
      write_line("the earlier handler\n");
      _exit(5);
    });
    touch(test::device_malloc(1000));
  });
  CHECK_EQUAL(WEXITSTATUS(result.status), 5);
  CHECK_CONTAINS(result.error, "to debug)\nthe earlier handler\n");
}

TEST(an_earlier_handler_gets_the_fault_address) {
  static char* volatile memory = nullptr;
  const test::ChildResult result = test::run_child([] {
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      _exit(info->si_addr == memory ? 5 : 6);
    };
    CHECK_EQUAL(sigaction(SIGSEGV, &action, nullptr), 0);
    memory = test::device_malloc(1000);
    touch(memory);
  });
  CHECK_EQUAL(WEXITSTATUS(result.status), 5);
}

TEST(a_forked_child_that_touches_its_parents_memory_gets_the_message) {
  char* memory = test::device_malloc(1000);
  const std::string error = error_of_faulting([memory] { touch(memory + 1); });
  CHECK_CONTAINS(error, "allocation " + hex(memory) + " (size 1000 bytes) + offset 1");
}

namespace {

// What a handler is called with and how it ends is up to each test.
void install(void (*handler)(int, siginfo_t*, void*), int flags, std::vector<int> blocked = {}) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  for (const int signal : blocked) sigaddset(&action.sa_mask, signal);
  CHECK_EQUAL(sigaction(SIGSEGV, &action, nullptr), 0);
}

bool is_blocked(int signal) {
  sigset_t signals;
  pthread_sigmask(SIG_SETMASK, nullptr, &signals);
  return sigismember(&signals, signal) == 1;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

struct sigaction replaced_action;

// Calls the action that it replaced.
void call_on(int signal, siginfo_t* info, void* context) {
  write_line("a later handler\n");
  replaced_action.sa_sigaction(signal, info, context);
}

void install_calling_on() {
  struct sigaction action = {};
  action.sa_sigaction = call_on;
  action.sa_flags = SA_SIGINFO;
  CHECK_EQUAL(sigaction(SIGSEGV, &action, &replaced_action), 0);
  CHECK((replaced_action.sa_flags & SA_SIGINFO) != 0);
}

// Has the library install its handler again, in front of a later one.
void start_watching() {
  CHECK_OK(orWatchStart());
  static char* memory = test::host_malloc(100);
  unsigned long long watch = 0;
  const orWatchObserver observer = [](void*, const void*, int) { return 1; };
  CHECK_OK(orWatchAdd(&watch, memory, 100, 1, observer, nullptr));
  CHECK_OK(orWatchRemove(watch));
}

}  // namespace

TEST(an_earlier_handler_for_one_fault_is_called_once) {
  for (const int flags : {SA_RESETHAND, SA_RESETHAND | SA_NODEFER}) {
    static int flags_now = 0;
    flags_now = flags;
    const std::string error = error_of_faulting([] {
      install([](int, siginfo_t*, void*) { write_line("the earlier handler\n"); }, flags_now);
      touch(test::device_malloc(1000));
    });
    CHECK_EQUAL(count_of(error, "the earlier handler\n"), 1u);
  }
}

TEST(an_ignored_signal_of_a_process_does_not_kill_but_a_fault_does) {
  const std::string error = error_of_faulting([] {
    signal(SIGSEGV, SIG_IGN);
    char* memory = test::device_malloc(1000);
    kill(getpid(), SIGSEGV);
    raise(SIGSEGV);
    write_line("still here\n");
    touch(memory);
  });
  CHECK_CONTAINS(error, "still here\n");
  CHECK_CONTAINS(error, "to debug)\n");
}

TEST(an_earlier_handler_runs_with_its_signals_blocked) {
  for (const bool is_deferred : {true, false}) {
    static bool is_deferred_now = false;
    is_deferred_now = is_deferred;
    const test::ChildResult result = test::run_child([] {
      install(
          [](int, siginfo_t*, void*) {
            const bool is_right = is_blocked(SIGSEGV) == is_deferred_now && is_blocked(SIGUSR1) &&
                                  is_blocked(SIGTERM) && !is_blocked(SIGUSR2);
            _exit(is_right ? 5 : 6);
          },
          is_deferred_now ? 0 : SA_NODEFER, {SIGUSR1});
      char* memory = test::device_malloc(1000);
      sigset_t signals;  // of the thread that faults: they stay blocked
      sigemptyset(&signals);
      sigaddset(&signals, SIGTERM);
      pthread_sigmask(SIG_BLOCK, &signals, nullptr);
      touch(memory);
    });
    CHECK_EQUAL(WEXITSTATUS(result.status), 5);
  }
}

TEST(the_signals_of_a_thread_are_as_before_after_a_handler_has_returned) {
  static char* memory = nullptr;
  static bool has_run = false;
  test::check_child([] {
    install(
        [](int, siginfo_t*, void*) {
          has_run = true;
          CHECK_OK(orFree(nullptr));
          ptrdiff_t offset = 0;
          CHECK_OK(orGetKernelOffset(&offset));
          struct sigaction action = {};
          // Of the interrupted thread. ThreadSanitizer blocks all signals in each handler.
          action.sa_sigaction = [](int, siginfo_t*, void* context) {
            const sigset_t& blocked = static_cast<const ucontext_t*>(context)->uc_sigmask;
            _exit(has_run && sigismember(&blocked, SIGUSR1) == 0 ? 0 : 7);
          };
          action.sa_flags = SA_SIGINFO;
          sigaction(SIGSEGV, &action, nullptr);
        },
        0, {SIGUSR1});
    memory = test::device_malloc(1000);
    touch(memory);  // once more after the handler, which has installed another
  });
}

TEST(a_later_handler_that_calls_the_one_it_replaced_goes_one_step_back) {
  const test::ChildResult result = test::run_child([] {
    install(
        [](int, siginfo_t*, void*) {
          write_line("the earlier handler\n");
          _exit(5);
        },
        0);
    char* memory = test::device_malloc(1000);
    install_calling_on();
    start_watching();
    touch(memory);
  });
  CHECK_EQUAL(WEXITSTATUS(result.status), 5);
  CHECK_CONTAINS(result.error, "to debug)\na later handler\nthe earlier handler\n");
  CHECK_EQUAL(count_of(result.error, "to debug)"), 1u);
}

TEST(a_fault_of_the_program_ends_with_a_later_handler_and_watches) {
  const std::string error = error_of_faulting([] {
    test::device_malloc(1000);
    install_calling_on();
    start_watching();
    touch(reinterpret_cast<char*>(uintptr_t{4096}));
  });
  CHECK_EQUAL(error, "a later handler\n");
}

TEST(a_later_handler_that_comes_and_goes_needs_no_more_room) {
  const std::string error = error_of_faulting([] {
    char* memory = test::device_malloc(1000);
    for (int i = 0; i < 100; ++i) {
      install_calling_on();
      start_watching();
      CHECK_EQUAL(sigaction(SIGSEGV, &replaced_action, nullptr), 0);
    }
    install_calling_on();
    start_watching();
    touch(memory);
  });
  CHECK_CONTAINS(error, "to debug)\na later handler\n");
  CHECK_EQUAL(count_of(error, "a later handler\n"), 1u);
}

TEST(a_handler_that_leaves_by_a_jump_is_called_for_the_next_fault) {
  test::check_child([] {
    static sigjmp_buf place;
    install([](int, siginfo_t*, void*) { siglongjmp(place, 1); }, 0);
    char* memory = test::device_malloc(1000);
    volatile int count = 0;
    while (count < 3) {
      if (sigsetjmp(place, 1) == 0) {
        touch(memory);
      } else {
        count = count + 1;
      }
    }
  });
}

namespace {

// A page that nothing may access, and a handler that lets it be accessed.
struct ClosedPage {
  ClosedPage()
      : size(size_t(sysconf(_SC_PAGESIZE))),
        memory(static_cast<char*>(
            mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    CHECK(memory != MAP_FAILED);
  }

  static int open(void* self, const orFault* fault) {
    auto& page = *static_cast<ClosedPage*>(self);
    const auto* address = static_cast<const char*>(fault->address);
    if (address < page.memory || address >= page.memory + page.size) return 0;
    page.access = fault->access;
    page.address = address;
    // It is that of the thread which faults, where the test has blocked the signal.
    page.has_signal_mask =
        sigismember(&static_cast<const ucontext_t*>(fault->machine)->uc_sigmask, SIGUSR1) == 1;
    ++page.count;
    return mprotect(page.memory, page.size, PROT_READ | PROT_WRITE) == 0 ? 1 : 0;
  }

  const size_t size;
  char* const memory;
  const char* address = nullptr;
  int access = -1;
  bool has_signal_mask = false;
  int count = 0;
};

int write_context(void* context, const orFault* /*fault*/) {
  write_line(static_cast<const char*>(context));
  return 0;
}

}  // namespace

TEST(a_handler_may_repair_a_fault_and_the_access_is_repeated) {
  test::check_child([] {
    ClosedPage page;
    CHECK_OK(orFaultHandlerAdd(ClosedPage::open, &page));
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    touch(page.memory + 3);
    CHECK_EQUAL(page.memory[3], 1);
    CHECK_EQUAL(page.count, 1);
    CHECK(page.address == page.memory + 3);
    CHECK(page.access == orFaultWrite || page.access == orFaultUnknown);
    CHECK(page.has_signal_mask);
  });
}

TEST(a_handler_may_repair_the_fault_of_a_kernel) {
  test::check_child([] {
    ClosedPage page;
    CHECK_OK(orFaultHandlerAdd(ClosedPage::open, &page));
    const orStream_t stream = test::make_stream();
    CHECK_OK(test::launch(stream, "touch", [&] {
      touch(page.memory);
      return orSuccess;
    }));
    CHECK_OK(orStreamSynchronize(stream));
    CHECK_EQUAL(page.count, 1);
  });
}

TEST(handlers_are_asked_before_the_library_the_latest_first) {
  const std::string error = error_of_faulting([] {
    char* memory = test::device_malloc(1000);
    static char first[] = "the first handler\n";
    static char second[] = "the second handler\n";
    CHECK_OK(orFaultHandlerAdd(write_context, first));
    CHECK_OK(orFaultHandlerAdd(write_context, second));
    touch(memory);
  });
  CHECK_EQUAL(error.find("the second handler\nthe first handler\nopenreg: the host touched"), 0u);
}

TEST(a_handler_that_was_removed_is_not_asked_until_it_is_added_again) {
  const std::string error = error_of_faulting([] {
    static char removed[] = "the removed handler\n";
    static char again[] = "the handler that came again\n";
    for (char* context : {removed, again}) {
      CHECK_OK(orFaultHandlerAdd(write_context, context));
      CHECK_OK(orFaultHandlerRemove(write_context, context));
      CHECK_ERROR(orFaultHandlerRemove(write_context, context), orErrorInvalidValue);
    }
    CHECK_OK(orFaultHandlerAdd(write_context, again));
    CHECK_ERROR(orFaultHandlerAdd(write_context, again), orErrorInvalidValue);
    touch(reinterpret_cast<char*>(uintptr_t{4096}));
  });
  CHECK_EQUAL(error, "the handler that came again\n");
}

TEST(a_fault_handler_may_leave_by_a_jump) {
  test::check_child([] {
    static sigjmp_buf place;
    CHECK_OK(orFaultHandlerAdd(
        [](void*, const orFault*) {
          siglongjmp(place, 1);
          return 0;
        },
        nullptr));
    char* memory = test::device_malloc(1000);
    volatile int count = 0;
    while (count < 3) {
      if (sigsetjmp(place, 1) == 0) {
        touch(memory);
      } else {
        count = count + 1;
      }
    }
  });
}

TEST(fault_handlers_need_no_memory_protection_and_no_device) {
  test::check_child([] {
    CHECK_EQUAL(setenv("OPENREG_MEMORY_PROTECTION", "0", 1), 0);
    ClosedPage page;
    CHECK_OK(orFaultHandlerAdd(ClosedPage::open, &page));
    touch(page.memory);
    CHECK_EQUAL(page.count, 1);
  });
}

TEST(a_fault_handler_that_is_null_is_refused) {
  CHECK_ERROR(orFaultHandlerAdd(nullptr, nullptr), orErrorInvalidValue);
  CHECK_CONTAINS(std::string(orGetLastErrorMessage()), "orFaultHandlerAdd: the handler is null");
  CHECK_ERROR(orFaultHandlerRemove(nullptr, nullptr), orErrorInvalidValue);
}
