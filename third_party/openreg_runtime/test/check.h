// The test harness: tests, checks, and what many tests need.
//
// A test program lists its tests when called with --list and runs one, by name, in a process of
// its own: settings are read once per process, and a crash ends one test.
#pragma once

#include <openreg/openreg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace test {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

// Defines a test. Its name states the rule it checks.
#define TEST(name)                                                \
  static void name();                                             \
  static const ::test::Registration register_##name(#name, name); \
  static void name()

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::cerr << file << ":" << line << ": " << what << std::endl;
  _exit(1);
}

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) ::test::fail(__FILE__, __LINE__, "expected " #condition); \
  } while (false)

#define CHECK_EQUAL(actual, expected) \
  ::test::check_equal(__FILE__, __LINE__, #actual, (actual), (expected))

// Checks which error a call of the library returns.
#define CHECK_ERROR(call, code) ::test::check_error(__FILE__, __LINE__, #call, (call), (code))
#define CHECK_OK(call) CHECK_ERROR(call, orSuccess)

// Checks that a text contains another.
#define CHECK_CONTAINS(text, part) ::test::check_contains(__FILE__, __LINE__, #text, (text), (part))

template <typename Actual, typename Expected>
void check_equal(const char* file, int line, const char* what, const Actual& actual,
                 const Expected& expected) {
  if (actual == expected) return;
  std::cerr << "got " << actual << ", expected " << expected << "\n";
  fail(file, line, what);
}

inline void check_error(const char* file, int line, const char* call, orError_t actual,
                        orError_t expected) {
  if (actual == expected) return;
  fail(file, line,
       std::string(call) + " returned " + orGetErrorName(actual) + " (" + orGetLastErrorMessage() +
           "), expected " + orGetErrorName(expected));
}

inline void check_contains(const char* file, int line, const char* what, const std::string& text,
                           const std::string& part) {
  if (text.find(part) != std::string::npos) return;
  fail(file, line, std::string(what) + " is '" + text + "', expected to contain '" + part + "'");
}

// Holds a stream until it is opened.
class Gate {
 public:
  // Enqueues a host function that waits for open().
  void hold(orStream_t stream) {
    CHECK_OK(orLaunchHostFunc(stream, [](void* self) { static_cast<Gate*>(self)->pass(); }, this));
  }

  // Waits until a stream is at the gate.
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }

  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

  void pass() {
    std::unique_lock lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool is_reached_ = false;
};

inline orStream_t make_stream(int device = 0) {
  CHECK_OK(orSetDevice(device));
  orStream_t stream = nullptr;
  CHECK_OK(orStreamCreate(&stream));
  return stream;
}

inline orEvent_t make_event() {
  orEvent_t event = nullptr;
  CHECK_OK(orEventCreate(&event));
  return event;
}

inline char* device_malloc(size_t size) {
  void* memory = nullptr;
  CHECK_OK(orMalloc(&memory, size));
  return static_cast<char*>(memory);
}

inline char* host_malloc(size_t size) {
  void* memory = nullptr;
  CHECK_OK(orMallocHost(&memory, size));
  return static_cast<char*>(memory);
}

// The address at which a kernel finds a device address.
template <typename T>
T* kernel_address(T* pointer) {
  ptrdiff_t offset = 0;
  CHECK_OK(orGetKernelOffset(&offset));
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + uintptr_t(offset));
}

// Enqueues a C++ callable as a kernel: it returns an orError_t.
template <typename Callable>
orError_t launch(orStream_t stream, const char* name, Callable callable) {
  static const orKernel move_and_destroy = {
      nullptr, [](void* closure) -> orError_t { return (*static_cast<Callable*>(closure))(); },
      [](void* to, void* from) {
        auto& source = *static_cast<Callable*>(from);
        new (to) Callable(std::move(source));
        source.~Callable();
      },
      [](void* closure) { static_cast<Callable*>(closure)->~Callable(); }};
  orKernel* kernel = new orKernel(move_and_destroy);  // lives as long as the process
  kernel->name = name;
  static std::mutex mutex;
  static auto* kernels = new std::vector<orKernel*>;  // keeps them reachable
  {
    const std::lock_guard lock(mutex);
    kernels->push_back(kernel);
  }
  alignas(Callable) std::byte closure[sizeof(Callable)];
  auto* moved = new (closure) Callable(std::move(callable));
  const orError_t error = orLaunchKernel(kernel, moved, sizeof(Callable), stream, 0);
  if (error != orSuccess) moved->~Callable();
  return error;
}

// Enqueues a kernel that fails with a code, and a text and tag if there is a text.
inline orError_t launch_failure(orStream_t stream, orError_t code, const char* text = nullptr,
                                int tag = 0) {
  return launch(stream, "failing", [=] {
    if (text != nullptr) orSetKernelError(text, tag);
    return code;
  });
}

struct ChildResult {
  int status;         // as of waitpid
  std::string error;  // what it wrote to the standard error stream
};

// Runs a function in a forked child, which then exits with status 0.
inline ChildResult run_child(const std::function<void()>& body) {
  int pipe_ends[2];
  CHECK_EQUAL(pipe(pipe_ends), 0);
  std::cerr.flush();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    body();
    std::exit(0);
  }
  close(pipe_ends[1]);
  ChildResult result{};
  char buffer[512];
  for (ssize_t count; (count = read(pipe_ends[0], buffer, sizeof(buffer))) > 0;) {
    result.error.append(buffer, static_cast<size_t>(count));
  }
  close(pipe_ends[0]);
  CHECK_EQUAL(waitpid(child, &result.status, 0), child);
  return result;
}

// Runs a function in a forked child and checks that it exits with status 0.
inline void check_child(const std::function<void()>& body) {
  const ChildResult result = run_child(body);
  if (!WIFEXITED(result.status) || WEXITSTATUS(result.status) != 0) {
    fail(__FILE__, __LINE__,
         "the child ended with status " + std::to_string(result.status) +
             " and wrote: " + result.error);
  }
}

}  // namespace test

#ifndef OPENREG_TEST_WITHOUT_MAIN
int main(int argc, char** argv) {
  const std::string name = argc == 2 ? argv[1] : "";
  for (const test::Test& test : test::tests()) {
    if (name == "--list") {
      std::cout << test.name << "\n";
    } else if (name == test.name) {
      test.body();
      return 0;
    }
  }
  return name == "--list" ? 0 : 2;
}
#endif
