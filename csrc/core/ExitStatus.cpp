#include "csrc/core/ExitStatus.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>

namespace c10::openreg {
namespace {

// The process whose exit status is to be 1.
pid_t failing_process = 0;

// An exit handler may call exit(): the C library then calls the remaining handlers, and uses the
// last status.
void fail(int status, void* /*unused*/) {
  if (status == 0 && getpid() == failing_process) {
    std::exit(1);
  }
}

}  // namespace

void failExit() {
  failing_process = getpid();
  TORCH_CHECK(on_exit(&fail, nullptr) == 0, "on_exit: no room for another function");
}

}  // namespace c10::openreg
