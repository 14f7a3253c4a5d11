#include "extras/fault_signal.h"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace openreg::os {
namespace {

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
#elif defined(__aarch64__)
  // The kernel puts the exception's syndrome among the records behind the registers.
  constexpr uint32_t syndrome_magic = 0x45535201;
  constexpr uint64_t is_write = 1 << 6;
  struct Record {
    uint32_t magic;
    uint32_t size;
    uint64_t syndrome;  // of the one that is looked for
  };
  const auto& records = static_cast<const ucontext_t*>(context)->uc_mcontext.__reserved;
  Record record;
  for (size_t at = 0; at <= sizeof(records) - sizeof(record); at += record.size) {
    std::memcpy(&record, records + at, sizeof(record));
    if (record.magic == syndrome_magic) {
      return (record.syndrome & is_write) != 0 ? FaultAccess::Write : FaultAccess::Read;
    }
    if (record.magic == 0 || record.size == 0) break;  // the last one
  }
  return FaultAccess::Unknown;
#else
  static_cast<void>(context);
  return FaultAccess::Unknown;
#endif
}

using SignalHandler = void (*)(int, siginfo_t*, void*);

// Which of ours an action is, -1 if none.
int chain_number_of(const struct sigaction& action);

void on_fault(int number, int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  struct sigaction front = {};
  sigaction(signal, nullptr, &front);
  // From another of ours, the fault has been handed on.
  const bool is_ours_to_see = info->si_code > 0 && chain_number_of(front) <= number;
  const Fault fault{reinterpret_cast<uintptr_t>(info->si_addr), access_of(context), context};
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

int chain_number_of(const struct sigaction& action) {
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

}  // namespace

bool observe_faults(FaultObserver observer) {
  fault_observer.store(observer, std::memory_order_relaxed);
  struct sigaction current = {};
  if (sigaction(SIGSEGV, nullptr, &current) != 0) return false;
  if (chain_number_of(current) >= 0) return true;
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
