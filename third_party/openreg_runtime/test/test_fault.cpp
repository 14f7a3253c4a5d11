// What happens when the host touches device memory.
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
