#include "base/os.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/read_file.h"

namespace openreg::os {
namespace {

// Linux limit of a thread's name, without the final zero.
constexpr size_t max_thread_name_length = 15;

// What fixes the size of a memory file for ever.
constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Reads a number from the first line of a file; 0 if there is none, as in "max".
uint64_t read_number(const char* path) {
  return read_file(path, uint64_t{0}, [](std::ifstream& file) {
    uint64_t number = 0;
    file >> number;
    return file ? number : 0;
  });
}

}  // namespace

std::string error_text(const char* call) { return std::string(call) + ": " + std::strerror(errno); }

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

int thread_id() {
  static thread_local const int id = static_cast<int>(syscall(SYS_gettid));
  return id;
}

void set_thread_name(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, max_thread_name_length).c_str());
}

void block_process_signals() {
  sigset_t signals;
  sigfillset(&signals);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) {
    sigdelset(&signals, fault);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void yield() { sched_yield(); }

void sleep_ns(int64_t duration_ns) {
  timespec duration{duration_ns / 1'000'000'000, duration_ns % 1'000'000'000};
  nanosleep(&duration, nullptr);
}

void park() {
  for (;;) pause();
}

size_t page_size() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

uint64_t physical_memory() {
  uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_size();
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const uint64_t limit = read_number(path);
    if (limit > 0) memory = std::min(memory, limit);
  }
  return memory;
}

int processor_count() {
  cpu_set_t processors;
  if (sched_getaffinity(0, sizeof(processors), &processors) != 0) return 1;
  return CPU_COUNT(&processors);
}

std::string processor_name() {
  return read_file("/proc/cpuinfo", std::string(), [](std::ifstream& file) -> std::string {
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("model name")) continue;
      const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
    return "";
  });
}

int processor_clock_khz() {
  const uint64_t khz = read_number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
  return khz <= std::numeric_limits<int>::max() ? static_cast<int>(khz) : 0;
}

void* reserve_addresses(size_t size) {
  void* address =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

void* map_memory(size_t size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

void unmap(void* address, size_t size) { munmap(address, size); }

int create_memory_file(const char* name, size_t size) {
  const int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  // Sealed, so that a process that maps the file can rely on every page being there.
  if (ftruncate(file, static_cast<off_t>(size)) == 0 && fchmod(file, S_IRUSR | S_IWUSR) == 0 &&
      fcntl(file, F_ADD_SEALS, size_seals) == 0) {
    return file;
  }
  const int cause = errno;
  close(file);
  errno = cause;
  return -1;
}

bool has_final_size(int file) { return (fcntl(file, F_GET_SEALS) & size_seals) == size_seals; }

void close_file(int file) { close(file); }

bool map_memory_file(void* address, size_t size, int file, bool is_inherited) {
  void* mapped =
      mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0);
  return mapped != MAP_FAILED && (is_inherited || madvise(address, size, MADV_DONTFORK) == 0);
}

bool discard(void* address, size_t size) { return madvise(address, size, MADV_REMOVE) == 0; }

bool sleep_while(const std::atomic<uint32_t>& word, uint32_t value, int64_t duration_ns) {
  const timespec duration{duration_ns / 1'000'000'000, duration_ns % 1'000'000'000};
  const timespec* limit = duration_ns == no_time_limit ? nullptr : &duration;
  return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, limit, nullptr, 0) == 0 ||
         errno != ETIMEDOUT;
}

void wake_sleeper(const std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

bool at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
  errno = pthread_atfork(before, in_parent, in_child);
  return errno == 0;
}

bool at_exit(void (*function)()) { return std::atexit(function) == 0; }

}  // namespace openreg::os
