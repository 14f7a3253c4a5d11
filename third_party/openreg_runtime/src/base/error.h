// Errors: how a function of the library makes, keeps and returns one.
//
// A function that returns an orError_t other than orSuccess and orErrorNotReady has already made
// it this thread's last error, by fail() or report(); callers pass the code on.
#pragma once

#include <openreg/error.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace openreg {

// The text of a message: the parts, printed one after the other.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  stream.exceptions(std::ios::badbit);  // or it would swallow a bad_alloc, and cut the text
  (stream << ... << parts);
  return std::move(stream).str();
}

// Of a kernel that failed: see orErrorRecord.
struct KernelPlace {
  std::string kernel;
  std::string location;
  uintptr_t address = 0;
};

// An asynchronous error: what a stream and the events recorded on it keep, and share.
struct Failure {
  Failure(orError_t code, std::string message, int tag, int64_t time_ns, bool is_sticky = false,
          KernelPlace place = {})
      : code(code),
        message(std::move(message)),
        tag(tag),
        time_ns(time_ns),
        is_sticky(is_sticky),
        place(std::move(place)) {}

  const orError_t code;
  const std::string message;
  const int tag;
  const int64_t time_ns;
  const bool is_sticky;  // as of orMakeKernelErrorSticky
  const KernelPlace place;
  mutable std::atomic<bool> is_reported{false};  // a call has returned it
};

using FailureRef = std::shared_ptr<const Failure>;

// Makes an error this thread's last error and returns its code. If the host has no memory for the
// message, that of the code takes its place.
orError_t fail(orError_t code, std::string message) noexcept;

// The same with a text that may have to be copied.
orError_t fail_with_text(orError_t code, const char* text) noexcept;

// "<function>: a pointer to the result is null".
orError_t fail_null(const char* function);

// Does the same with a stream's or event's failure; null is no error.
orError_t report(const FailureRef& failure) noexcept;

// "The host is out of memory". Needs none.
orError_t fail_out_of_memory() noexcept;

// What a stream keeps that fails with a known code while the host is out of memory. Needs none,
// once prepare_spare_failures() has succeeded.
void prepare_spare_failures();
FailureRef spare_failure(orError_t code) noexcept;

// What the kernel that this thread ran passed to orSetKernelErrorRecord.
struct KernelError {
  bool is_set = false;
  std::string text;      // "" if there is none, or the host had no memory for it
  std::string location;  // the same
  uintptr_t address = 0;
  int tag = 0;
  bool is_sticky = false;
};

// True if this thread has a kernel error.
bool has_kernel_error();

// Returns this thread's kernel error and resets it.
KernelError take_kernel_error() noexcept;

// True if the code is in the table.
bool is_known(orError_t code);

// Runs the body of a C function: turns what it throws into an error code. Nothing may throw in
// a handler, so none allocates without a catch of its own.
template <typename Body>
orError_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_out_of_memory();
  } catch (const std::system_error& error) {
    return fail_with_text(orErrorOperatingSystem, error.what());
  } catch (const std::exception& error) {
    return fail_with_text(orErrorUnknown, error.what());
  } catch (...) {
    return fail_with_text(orErrorUnknown, "an exception that is not a std::exception");
  }
}

// The same for a function that stores a result, whose address may not be null.
template <typename Result, typename Body>
orError_t guarded_result(const char* function, const Result* result, Body&& body) noexcept {
  return guarded([&] { return result == nullptr ? fail_null(function) : body(); });
}

}  // namespace openreg
