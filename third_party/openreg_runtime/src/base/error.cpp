#include "base/error.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <new>
#include <utility>

#include "base/thread_object.h"

namespace openreg {
namespace {

struct Row {
  orError_t code;
  const char* name;
  const char* text;
};

constexpr Row rows[] = {
#define OPENREG_ROW(name, number, text) {name, #name, text},
    OPENREG_ERRORS(OPENREG_ROW)
#undef OPENREG_ROW
};

constexpr Row unknown_row{orErrorUnknown, "unrecognized error code", "unrecognized error code"};

const Row& row_of(orError_t code) {
  const Row* row = std::find_if(std::begin(rows), std::end(rows),
                                [code](const Row& one) { return one.code == code; });
  return row == std::end(rows) ? unknown_row : *row;
}

// This thread's last error. The message is either a text that lives as long as the process or in
// this thread's LastMessage, so that an error that says that there is no memory needs none.
struct LastError {
  orError_t code = orSuccess;
  int tag = 0;
  const char* text = "";  // null: see LastMessage
};

thread_local constinit LastError last_error;

struct LastMessage {
  std::string text;
  KernelPlace place;
};

// If the host has no memory for the message, that of the code takes its place.
template <typename Text>
orError_t keep(orError_t code, Text&& message, int tag, const KernelPlace& place = {}) noexcept {
  try {
    auto& kept = thread_object<LastMessage>();
    kept.text = std::forward<Text>(message);
    kept.place = place;
    last_error = {code, tag, nullptr};
  } catch (const std::bad_alloc&) {
    last_error = {code, tag, row_of(code).text};
  }
  return code;
}

const char* last_message() noexcept {
  if (last_error.text != nullptr) return last_error.text;
  const LastMessage* message = find_thread_object<LastMessage>();
  return message == nullptr ? "" : message->text.c_str();  // null: the thread is ending
}

// Kept apart from the text so that a worker that looks for an error after each kernel reads one
// flag.
thread_local bool is_kernel_error_set = false;
thread_local int kernel_error_tag = 0;
thread_local uintptr_t kernel_error_address = 0;
thread_local bool is_kernel_error_sticky = false;

struct KernelErrorText {
  std::string text;
  std::string location;
};

struct SpareFailures {
  std::map<orError_t, Failure> by_code;

  SpareFailures() {
    for (const Row& row : rows) {
      by_code.try_emplace(
          row.code, row.code,
          concat("a kernel failed, and the host had no memory to say which: ", row.text), 0, 0);
    }
  }
};

const SpareFailures& spare_failures() {
  static const auto* failures = new SpareFailures;
  return *failures;
}

}  // namespace

orError_t fail(orError_t code, std::string message) noexcept {
  return keep(code, std::move(message), 0);
}

orError_t fail_with_text(orError_t code, const char* text) noexcept { return keep(code, text, 0); }

orError_t fail_null(const char* function) {
  return fail(orErrorInvalidValue, concat(function, ": a pointer to the result is null"));
}

orError_t fail_out_of_memory() noexcept {
  last_error = {orErrorMemoryAllocation, 0, "the host is out of memory"};
  return orErrorMemoryAllocation;
}

orError_t report(const FailureRef& failure) noexcept {
  if (failure == nullptr) return orSuccess;
  failure->is_reported.store(true, std::memory_order_relaxed);
  return keep(failure->code, failure->message, failure->tag, failure->place);
}

void prepare_spare_failures() { spare_failures(); }

FailureRef spare_failure(orError_t code) noexcept {
  return FailureRef(FailureRef(), &spare_failures().by_code.find(code)->second);
}

bool has_kernel_error() { return is_kernel_error_set; }

KernelError take_kernel_error() noexcept {
  KernelError taken;
  if (!std::exchange(is_kernel_error_set, false)) return taken;
  taken.is_set = true;
  taken.tag = std::exchange(kernel_error_tag, 0);
  taken.address = std::exchange(kernel_error_address, 0);
  taken.is_sticky = std::exchange(is_kernel_error_sticky, false);
  if (KernelErrorText* kept = find_thread_object<KernelErrorText>()) {
    taken.text.swap(kept->text);
    taken.location.swap(kept->location);
  }
  return taken;
}

bool is_known(orError_t code) { return &row_of(code) != &unknown_row; }

}  // namespace openreg

using namespace openreg;

extern "C" {

const char* orGetErrorName(orError_t error) { return row_of(error).name; }

const char* orGetErrorString(orError_t error) { return row_of(error).text; }

orError_t orGetLastError(void) { return std::exchange(last_error, {}).code; }

orError_t orPeekAtLastError(void) { return last_error.code; }

const char* orGetLastErrorMessage(void) { return last_message(); }

int orGetLastErrorTag(void) { return last_error.tag; }

void orSetKernelError(const char* text, int tag) {
  const orKernelError error{.text = text, .tag = tag, .location = nullptr, .address = 0};
  orSetKernelErrorRecord(&error);
}

void orSetKernelErrorRecord(const orKernelError* error) {
  if (error == nullptr) return;
  is_kernel_error_set = true;
  is_kernel_error_sticky = false;
  kernel_error_tag = error->tag;
  kernel_error_address = error->address;
  static_cast<void>(guarded([&] {
    if (KernelErrorText* kept = find_thread_object<KernelErrorText>()) {
      kept->text.clear();
      kept->location.clear();
    }
    auto& kept = thread_object<KernelErrorText>();
    kept.text = error->text == nullptr ? "" : error->text;
    kept.location = error->location == nullptr ? "" : error->location;
    return orSuccess;
  }));
}

orError_t orGetLastErrorRecord(orErrorRecord* record) {
  if (record == nullptr) return fail_null("orGetLastErrorRecord");
  const LastMessage* kept =
      last_error.text == nullptr ? find_thread_object<LastMessage>() : nullptr;
  *record = {.code = last_error.code,
             .tag = last_error.tag,
             .message = last_message(),
             .kernel = kept == nullptr ? "" : kept->place.kernel.c_str(),
             .location = kept == nullptr ? "" : kept->place.location.c_str(),
             .address = kept == nullptr ? 0 : kept->place.address};
  return orSuccess;
}

void orMakeKernelErrorSticky(void) { is_kernel_error_sticky = is_kernel_error_set; }

}  // extern "C"
