#include "wait_check.h"

#include <utility>

namespace openreg::wait_check {
namespace {

thread_local orWaitCheckFn check = nullptr;

}  // namespace

orWaitCheckFn current() { return check; }

orError_t fail_ended_early() {
  return fail(orErrorNotReady, "the wait was ended early, by a check of the thread that waits");
}

Suspension::Suspension() : suspended_(std::exchange(check, nullptr)) {}

Suspension::~Suspension() { check = suspended_; }

}  // namespace openreg::wait_check

extern "C" orError_t orSetWaitCheck(orWaitCheckFn check) {
  openreg::wait_check::check = check;
  return orSuccess;
}
