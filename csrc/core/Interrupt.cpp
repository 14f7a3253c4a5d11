#include "csrc/core/Interrupt.h"

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

InterruptibleWait::InterruptibleWait() {
  // A signal handler may wait for the device as well: then the outer wait has the check.
  if (interrupt_check == nullptr || has_check || !isMainThread()) {
    return;
  }
  OPENREG_CHECK(orSetWaitCheck(&endsEarly));
  is_outermost_ = true;
  has_check = true;
}

InterruptibleWait::~InterruptibleWait() {
  if (is_outermost_) {
    OPENREG_WARN_IF_FAILED(orSetWaitCheck(nullptr));
    has_check = false;
  }
}

orError_t InterruptibleWait::finish(orError_t error) {
  if (C10_UNLIKELY(error == orErrorNotReady && interrupt != nullptr)) {
    std::ignore = orGetLastError();  // the exception reports it
    std::rethrow_exception(std::exchange(interrupt, nullptr));
  }
  return error;
}

}  // namespace c10::openreg
