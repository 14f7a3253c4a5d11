#include "csrc/core/Interrupt.h"

#include <c10/util/ScopeExit.h>
#include <openreg/device.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tuple>
#include <utility>

#include "torch_openreg/core/Exception.h"

namespace c10::openreg {
namespace {

InterruptCheck interrupt_check = nullptr;

thread_local bool has_check = false;
thread_local std::exception_ptr interrupt;

bool isMainThread() {
  static thread_local const bool is_main = syscall(SYS_gettid) == getpid();
  return is_main;
}

int endsEarly() {
  interrupt = interrupt_check();
  return interrupt != nullptr ? 1 : 0;
}

}  // namespace

void setInterruptCheck(InterruptCheck check) { interrupt_check = check; }

orError_t waitInterruptibly(c10::function_ref<orError_t()> wait) {
  // A signal handler may wait for the device as well: then the outer wait has the check.
  const bool is_outermost = interrupt_check != nullptr && !has_check && isMainThread();
  if (is_outermost) {
    OPENREG_CHECK(orSetWaitCheck(&endsEarly));
    has_check = true;
  }
  const auto end = c10::make_scope_exit([is_outermost] {
    if (is_outermost) {
      OPENREG_WARN_IF_FAILED(orSetWaitCheck(nullptr));
      has_check = false;
    }
  });
  const orError_t error = wait();
  if (C10_UNLIKELY(error == orErrorNotReady && interrupt != nullptr)) {
    std::ignore = orGetLastError();  // the exception reports it
    std::rethrow_exception(std::exchange(interrupt, nullptr));
  }
  return error;
}

}  // namespace c10::openreg
