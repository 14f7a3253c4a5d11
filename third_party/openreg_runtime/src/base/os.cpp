#include "base/os.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

namespace openreg::os {
namespace {

// Linux limit of a thread's name, without the final zero.
constexpr size_t max_thread_name_length = 15;

// What fixes the size of a memory file for ever.
constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::atomic<FaultObserver> fault_observer{nullptr};

// Note [Earlier fault actions]
// Others may install actions after ours, in front of it; observe_faults() then installs one of ours
// again, in front of theirs. So there are several of ours, each a function of its own that knows
// which action it replaced and hands on to that one. An action that hands a fault on in its turn,
// by calling what it replaced or by installing that and raising the signal again (as Python's
// faulthandler does), thus reaches the one of ours below it, and goes one step back. Only the front
// one looks at the fault.
//
// An earlier action is called as the kernel would have: with its signals blocked, on the thread's
// alternate stack if there is one, and once if it has SA_RESETHAND.
constexpr int max_fault_actions = 16;
struct FaultAction {
  struct sigaction replaced;
  std::atomic<bool> has_been_reset;  // it had SA_RESETHAND, and has been called
};
FaultAction fault_actions[max_fault_actions];
std::atomic<int> fault_action_count{0};

// What `read` makes of a file, `otherwise` if it cannot be read. A stream swallows what is thrown
// while it reads, which may be a bad_alloc, unless it is told not to.
template <typename Value, typename Read>
Value read_file(const std::string& path, Value otherwise, const Read& read) {
  try {
    std::ifstream file(path);
    file.exceptions(std::ios::badbit);
    return read(file);
  } catch (const std::ios_base::failure&) {
    return otherwise;
  }
}

// Reads a number from the first line of a file; 0 if there is none, as in "max".
uint64_t read_number(const char* path) {
  return read_file(path, uint64_t{0}, [](std::ifstream& file) {
    uint64_t number = 0;
    file >> number;
    return file ? number : 0;
  });
}

// See proc(5): the 22nd field. 0 if the process has ended.
uint64_t parse_process_start(std::ifstream& file) {
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The second field, in parentheses, is the program's name and may contain anything.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  fields.exceptions(std::ios::badbit);
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  constexpr int start_field = 22;
  for (int number = 4; number < start_field; ++number) fields >> field;
  uint64_t start = 0;
  fields >> start;
  return fields ? start : 0;
}

void die_of(int signal, const siginfo_t* info) {
  struct sigaction default_action = {};
  default_action.sa_handler = SIG_DFL;
  sigaction(signal, &default_action, nullptr);
  // The faulting instruction runs again on return. A signal that a process sent does not come again
  // by itself; it is blocked here and arrives on return.
  if (info->si_code <= 0) raise(signal);
}

void call_replaced(FaultAction& action, int signal, siginfo_t* info, void* context) {
  const struct sigaction& replaced = action.replaced;
  const bool is_once = (replaced.sa_flags & SA_RESETHAND) != 0;
  const bool has_info = (replaced.sa_flags & SA_SIGINFO) != 0;
  if (is_once && action.has_been_reset.exchange(true)) return die_of(signal, info);
  if (!has_info && replaced.sa_handler == SIG_DFL) return die_of(signal, info);
  if (!has_info && replaced.sa_handler == SIG_IGN) {
    if (info->si_code > 0) die_of(signal, info);  // a fault cannot be ignored
    return;
  }
  sigset_t ours;
  sigset_t blocked = static_cast<const ucontext_t*>(context)->uc_sigmask;
  sigorset(&blocked, &blocked, &replaced.sa_mask);
  if ((replaced.sa_flags & SA_NODEFER) == 0) sigaddset(&blocked, signal);
  pthread_sigmask(SIG_SETMASK, &blocked, &ours);
  if (has_info) {
    replaced.sa_sigaction(signal, info, context);
  } else {
    replaced.sa_handler(signal);
  }
  pthread_sigmask(SIG_SETMASK, &ours, nullptr);
}

FaultAccess access_of(const void* context) {
#if defined(__x86_64__)
  constexpr greg_t is_write = 2;
  const greg_t error = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
  return (error & is_write) != 0 ? FaultAccess::Write : FaultAccess::Read;
#else
  static_cast<void>(context);
  return FaultAccess::Unknown;
#endif
}

using SignalHandler = void (*)(int, siginfo_t*, void*);

// Which of ours an action is, -1 if none.
int number_of(const struct sigaction& action);

void on_fault(int number, int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  struct sigaction front = {};
  sigaction(signal, nullptr, &front);
  // From another of ours, the fault has been handed on.
  const bool is_ours_to_see = info->si_code > 0 && number_of(front) <= number;
  const Fault fault{reinterpret_cast<uintptr_t>(info->si_addr), access_of(context)};
  const bool is_dealt_with =
      is_ours_to_see && fault_observer.load(std::memory_order_relaxed)(fault);
  errno = saved_errno;
  if (!is_dealt_with) call_replaced(fault_actions[number], signal, info, context);
}

template <int number>
void on_fault_numbered(int signal, siginfo_t* info, void* context) {
  on_fault(number, signal, info, context);
}

template <int... numbers>
constexpr std::array<SignalHandler, sizeof...(numbers)> make_handlers(
    std::integer_sequence<int, numbers...>) {
  return {on_fault_numbered<numbers>...};
}

constexpr auto fault_handlers = make_handlers(std::make_integer_sequence<int, max_fault_actions>());

int number_of(const struct sigaction& action) {
  if ((action.sa_flags & SA_SIGINFO) == 0) return -1;
  for (int i = 0; i < max_fault_actions; ++i) {
    if (action.sa_sigaction == fault_handlers[static_cast<size_t>(i)]) return i;
  }
  return -1;
}

bool is_same(const struct sigaction& a, const struct sigaction& b) {
  const bool is_handler_same = (a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction
                                                              : a.sa_handler == b.sa_handler;
  // One by one: of what sigaction() gives back, only the bytes of signals that exist are set.
  bool is_mask_same = true;
  for (int signal = 1; signal < NSIG; ++signal) {
    is_mask_same &= sigismember(&a.sa_mask, signal) == sigismember(&b.sa_mask, signal);
  }
  return a.sa_flags == b.sa_flags && is_handler_same && is_mask_same;
}

int protection_flags(Protection protection) {
  switch (protection) {
    case Protection::None:
      return PROT_NONE;
    case Protection::Read:
      return PROT_READ;
    default:
      return PROT_READ | PROT_WRITE;
  }
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

int open_memory_file(int process, int file) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  // Opening some other kind of file might wait, or have an effect.
  constexpr char prefix[] = "/memfd:openreg-";
  char target[sizeof(prefix) - 1];
  if (readlink(path.c_str(), target, sizeof(target)) < 0) return -1;
  if (std::memcmp(target, prefix, sizeof(target)) != 0) {
    errno = ENOENT;
    return -1;
  }
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (opened < 0) return -1;
  if ((fcntl(opened, F_GET_SEALS) & size_seals) == size_seals) return opened;
  close(opened);
  errno = ENOENT;
  return -1;
}

bool identify_file(int file, FileIdentity* identity) {
  struct stat status;
  if (fstat(file, &status) != 0) return false;
  *identity = {status.st_ino, static_cast<uint64_t>(status.st_size)};
  return true;
}

void close_file(int file) { close(file); }

bool map_memory_file(void* address, size_t size, int file, bool is_inherited) {
  void* mapped =
      mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0);
  return mapped != MAP_FAILED && (is_inherited || madvise(address, size, MADV_DONTFORK) == 0);
}

bool map_private_copy(void* address, size_t size, int file) {
  return mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file,
              0) != MAP_FAILED;
}

bool protect(void* address, size_t size, Protection protection) {
  return mprotect(address, size, protection_flags(protection)) == 0;
}

bool discard(void* address, size_t size) { return madvise(address, size, MADV_REMOVE) == 0; }

int process_id() { return getpid(); }

uint64_t process_start(int process) {
  return read_file("/proc/" + std::to_string(process) + "/stat", uint64_t{0}, parse_process_start);
}

bool fill_random(void* memory, size_t size) {
  return getrandom(memory, size, 0) == static_cast<ssize_t>(size);
}

void wait_for_change(const std::atomic<uint32_t>& word, uint32_t value, int64_t duration_ns) {
  const timespec duration{duration_ns / 1'000'000'000, duration_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &duration, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

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

bool observe_faults(FaultObserver observer) {
  fault_observer.store(observer, std::memory_order_relaxed);
  struct sigaction current = {};
  if (sigaction(SIGSEGV, nullptr, &current) != 0) return false;
  if (number_of(current) >= 0) return true;
  const int count = fault_action_count.load(std::memory_order_relaxed);
  // An action that was in front of one of ours before, was taken away and has come back, as by
  // faulthandler.enable(), gets the same one of ours in front of it again.
  int number = 0;
  while (number < count && !is_same(fault_actions[number].replaced, current)) ++number;
  if (number == max_fault_actions) {
    errno = ENOSPC;
    return false;
  }
  // Kept before the handler can run: it must never see an empty action.
  if (number == count) {
    fault_actions[number].replaced = current;
    fault_action_count.store(count + 1, std::memory_order_relaxed);
  }
  fault_actions[number].has_been_reset.store(false);
  struct sigaction action = {};
  action.sa_sigaction = fault_handlers[static_cast<size_t>(number)];
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGSEGV, &action, nullptr) == 0;
}

void write_error(const char* text, size_t size) {
  while (size > 0) {
    const ssize_t written = write(STDERR_FILENO, text, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text += written;
    size -= static_cast<size_t>(written);
  }
}

}  // namespace openreg::os
