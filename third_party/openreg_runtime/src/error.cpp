#include "error.h"

#include <utility>

#include "thread_object.h"

namespace openreg {
namespace {

struct LastError {
  orError_t code = orSuccess;
  std::string message;
  int tag = 0;
};

LastError& last_error() { return thread_object<LastError>(); }

// Kept apart from KernelError so that a worker that looks for an error after each kernel reads
// one flag.
thread_local bool is_kernel_error_set = false;

}  // namespace

orError_t fail(orError_t code, std::string message, int tag) {
  LastError& last = last_error();
  last.code = code;
  last.message = std::move(message);
  last.tag = tag;
  return code;
}

orError_t report(const FailureRef& failure) {
  if (failure == nullptr) return orSuccess;
  return fail(failure->code, failure->message, failure->tag);
}

bool has_kernel_error() { return is_kernel_error_set; }

KernelError take_kernel_error() {
  if (!is_kernel_error_set) return {};
  is_kernel_error_set = false;
  return std::exchange(thread_object<KernelError>(), {});
}

bool is_known(orError_t code) {
  switch (code) {
#define OPENREG_CASE(name, number, text) case name:
    OPENREG_ERRORS(OPENREG_CASE)
#undef OPENREG_CASE
    return true;
  }
  return false;
}

}  // namespace openreg

extern "C" {

const char* orGetErrorName(orError_t error) {
  switch (error) {
#define OPENREG_CASE(name, number, text) \
  case name:                             \
    return #name;
    OPENREG_ERRORS(OPENREG_CASE)
#undef OPENREG_CASE
  }
  return "unrecognized error code";
}

const char* orGetErrorString(orError_t error) {
  switch (error) {
#define OPENREG_CASE(name, number, text) \
  case name:                             \
    return text;
    OPENREG_ERRORS(OPENREG_CASE)
#undef OPENREG_CASE
  }
  return "unrecognized error code";
}

orError_t orGetLastError(void) { return std::exchange(openreg::last_error(), {}).code; }

orError_t orPeekAtLastError(void) { return openreg::last_error().code; }

const char* orGetLastErrorMessage(void) { return openreg::last_error().message.c_str(); }

int orGetLastErrorTag(void) { return openreg::last_error().tag; }

void orSetKernelError(const char* text, int tag) {
  static_cast<void>(openreg::guarded([&] {
    openreg::thread_object<openreg::KernelError>() = {true, text == nullptr ? "" : text, tag};
    openreg::is_kernel_error_set = true;
    return orSuccess;
  }));
}

}  // extern "C"
