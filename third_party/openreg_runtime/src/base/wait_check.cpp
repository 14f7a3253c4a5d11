#include "base/wait_check.h"

#include <utility>

namespace openreg::wait_check {
namespace {

thread_local orWaitCheckFn check = nullptr;

}  // namespace

orWaitCheckFn current() { return check; }

orError_t fail_ended_early() {
  return fail(orErrorNotReady, "the wait was ended early, by a check of the thread that waits");
}

Substitution::Substitution(orWaitCheckFn other) : replaced_(std::exchange(check, other)) {}

Substitution::~Substitution() { check = replaced_; }

}  // namespace openreg::wait_check

extern "C" orError_t orSetWaitCheck(orWaitCheckFn check) {
  openreg::wait_check::check = check;
  return orSuccess;
}
