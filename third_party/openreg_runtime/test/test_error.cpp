// Error codes, this thread's last error, and what a failed kernel leaves in it.
#include <thread>

#include "check.h"

using test::launch;
using test::launch_failure;
using test::make_stream;

TEST(every_code_has_its_name_and_text) {
#define CHECK_CODE(name, number, text)                   \
  CHECK_EQUAL(static_cast<int>(name), number);           \
  CHECK_EQUAL(std::string(orGetErrorName(name)), #name); \
  CHECK_EQUAL(std::string(orGetErrorString(name)), text);
  OPENREG_ERRORS(CHECK_CODE)
#undef CHECK_CODE
}

TEST(an_unknown_code_has_a_text) {
  const auto unknown = static_cast<orError_t>(1234);
  CHECK_EQUAL(std::string(orGetErrorName(unknown)), "unrecognized error code");
  CHECK_EQUAL(std::string(orGetErrorString(unknown)), "unrecognized error code");
}

TEST(last_error_is_kept_until_it_is_read) {
  CHECK_EQUAL(orPeekAtLastError(), orSuccess);
  CHECK_EQUAL(std::string(orGetLastErrorMessage()), "");
  CHECK_ERROR(orSetDevice(5), orErrorInvalidDevice);
  CHECK_OK(orSetDevice(1));
  CHECK_EQUAL(orPeekAtLastError(), orErrorInvalidDevice);
  CHECK_CONTAINS(orGetLastErrorMessage(), "expected a device from 0 to 1, got 5");
  CHECK_EQUAL(orGetLastError(), orErrorInvalidDevice);
  CHECK_EQUAL(orGetLastError(), orSuccess);
  CHECK_EQUAL(std::string(orGetLastErrorMessage()), "");
}

TEST(last_error_belongs_to_its_thread) {
  CHECK_ERROR(orSetDevice(-1), orErrorInvalidDevice);
  std::thread([] {
    CHECK_EQUAL(orPeekAtLastError(), orSuccess);
    CHECK_ERROR(orMalloc(nullptr, 1), orErrorInvalidValue);
  }).join();
  CHECK_EQUAL(orGetLastError(), orErrorInvalidDevice);
}

TEST(last_error_works_while_a_thread_ends) {
  struct AtThreadEnd {
    ~AtThreadEnd() {
      CHECK_ERROR(orSetDevice(7), orErrorInvalidDevice);
      CHECK_CONTAINS(orGetLastErrorMessage(), "got 7");
      orSetKernelError("late", 1);
      CHECK_OK(orTracePushExternalId(1));
    }
  };
  std::thread([] {
    // Constructed first, so destroyed after all objects of the library.
    static thread_local AtThreadEnd at_end;
    static_cast<void>(at_end);
    CHECK_ERROR(orSetDevice(6), orErrorInvalidDevice);
    CHECK_OK(orTracePushExternalId(1));
  }).join();
}

TEST(a_failed_kernel_names_itself_its_stream_and_its_text) {
  const orStream_t stream = make_stream(1);
  CHECK_OK(launch_failure(stream, orErrorInvalidValue, "index 7 is out of bounds", 42));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorInvalidValue);
  CHECK_EQUAL(std::string(orGetLastErrorMessage()),
              "kernel 'failing' on stream 1 of device 1 failed: index 7 is out of bounds");
  CHECK_EQUAL(orGetLastErrorTag(), 42);
  CHECK_ERROR(orSetDevice(9), orErrorInvalidDevice);
  CHECK_EQUAL(orGetLastErrorTag(), 0);
}

TEST(a_failed_kernel_says_where_it_failed_and_at_which_address) {
  const orStream_t stream = make_stream(1);
  CHECK_OK(launch(stream, "reads", [] {
    const orKernelError error{"load past the end", 7, "add.py:12", 0x1000};
    orSetKernelErrorRecord(&error);
    return orErrorIllegalAddress;
  }));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorIllegalAddress);
  orErrorRecord record{};
  CHECK_OK(orGetLastErrorRecord(&record));
  CHECK_EQUAL(record.code, orErrorIllegalAddress);
  CHECK_EQUAL(record.tag, 7);
  CHECK_EQUAL(std::string(record.kernel), "reads");
  CHECK_EQUAL(std::string(record.location), "add.py:12");
  CHECK_EQUAL(record.address, uintptr_t{0x1000});
  CHECK_EQUAL(std::string(record.message),
              "kernel 'reads' on stream 1 of device 1 failed: load past the end, at add.py:12, "
              "address 0x1000");

  CHECK_ERROR(orSetDevice(9), orErrorInvalidDevice);
  CHECK_OK(orGetLastErrorRecord(&record));
  CHECK_EQUAL(record.code, orErrorInvalidDevice);
  CHECK_EQUAL(std::string(record.kernel) + record.location, "");
  CHECK_EQUAL(record.address, uintptr_t{0});
  CHECK_ERROR(orGetLastErrorRecord(nullptr), orErrorInvalidValue);
}

TEST(a_kernel_that_gave_no_text_gets_that_of_its_code) {
  const orStream_t stream = make_stream();
  CHECK_OK(launch_failure(stream, orErrorNotSupported));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorNotSupported);
  CHECK_CONTAINS(orGetLastErrorMessage(), "failed: operation not supported");
  CHECK_EQUAL(orGetLastErrorTag(), 0);
}

TEST(the_text_of_a_kernel_that_succeeded_is_forgotten) {
  const orStream_t stream = make_stream();
  CHECK_OK(launch_failure(stream, orSuccess, "stale", 1));
  CHECK_OK(launch_failure(stream, orErrorLaunchFailure));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorLaunchFailure);
  CHECK_CONTAINS(orGetLastErrorMessage(), "failed: a kernel failed");
}

TEST(a_code_outside_the_table_becomes_unknown) {
  CHECK_OK(launch_failure(nullptr, static_cast<orError_t>(1234), "odd"));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorUnknown);
  CHECK_CONTAINS(orGetLastErrorMessage(), "odd");
}

TEST(not_ready_from_a_kernel_is_a_failure) {
  CHECK_OK(launch_failure(nullptr, orErrorNotReady));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorLaunchFailure);
}

TEST(an_exception_becomes_a_failure_with_its_text) {
  const orStream_t stream = make_stream();
  CHECK_OK(test::launch(stream, "aten::index",
                        []() -> orError_t { throw std::runtime_error("thrown text"); }));
  CHECK_ERROR(orStreamSynchronize(stream), orErrorLaunchFailure);
  CHECK_EQUAL(std::string(orGetLastErrorMessage()),
              "kernel 'aten::index' on stream 1 of device 0 failed: thrown text");
}

TEST(any_thrown_object_becomes_a_failure) {
  CHECK_OK(test::launch(nullptr, "odd", []() -> orError_t { throw 5; }));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorLaunchFailure);
  CHECK_CONTAINS(orGetLastErrorMessage(), "failed: unknown exception");
}

TEST(a_host_function_fails_by_throwing_or_by_setting_an_error) {
  CHECK_OK(orLaunchHostFunc(
      nullptr, [](void*) { throw std::runtime_error("from the host function"); }, nullptr));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorLaunchFailure);
  CHECK_CONTAINS(orGetLastErrorMessage(), "a host function on stream 0 of device 0 failed: from");
  CHECK_OK(orLaunchHostFunc(nullptr, [](void*) { orSetKernelError("said so", 3); }, nullptr));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorLaunchFailure);
  CHECK_CONTAINS(orGetLastErrorMessage(), "said so");
  CHECK_EQUAL(orGetLastErrorTag(), 3);
}

TEST(a_long_text_is_kept_whole) {
  const std::string text(100'000, 'x');
  CHECK_OK(test::launch(nullptr, "long", [text] {
    orSetKernelError(text.c_str(), 0);
    return orErrorLaunchFailure;
  }));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorLaunchFailure);
  CHECK_CONTAINS(orGetLastErrorMessage(), text);
}

TEST(a_null_text_is_an_empty_text) {
  CHECK_OK(test::launch(nullptr, "mute", [] {
    orSetKernelError(nullptr, 4);
    return orErrorLaunchFailure;
  }));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorLaunchFailure);
  CHECK_EQUAL(orGetLastErrorTag(), 4);
}

namespace {

orError_t launch_sticky_failure(orStream_t stream) {
  return test::launch(stream, "asserting", [] {
    orSetKernelError("for good", 0);
    orMakeKernelErrorSticky();
    return orErrorAssert;
  });
}

}  // namespace

TEST(a_sticky_error_comes_out_of_each_later_wait_launch_and_allocation_of_the_device) {
  const orStream_t failing = make_stream();
  const orStream_t other = make_stream();
  void* memory = nullptr;
  CHECK_OK(orMalloc(&memory, 64));
  orEvent_t event = nullptr;
  CHECK_OK(orEventCreate(&event));
  CHECK_OK(launch_sticky_failure(failing));
  for (int i = 0; i < 2; ++i) {
    CHECK_ERROR(orStreamSynchronize(failing), orErrorAssert);
    CHECK_CONTAINS(orGetLastErrorMessage(), "kernel 'asserting' on stream 1 of device 0 failed");
  }
  CHECK_ERROR(orStreamSynchronize(other), orErrorAssert);
  CHECK_ERROR(orStreamQuery(nullptr), orErrorAssert);
  CHECK_ERROR(orDeviceSynchronize(), orErrorAssert);
  CHECK_ERROR(launch_failure(other, orSuccess, "not run"), orErrorAssert);
  CHECK_ERROR(orEventRecord(event, other), orErrorAssert);
  CHECK_ERROR(orMemset(memory, 0, 64), orErrorAssert);
  void* more = nullptr;
  CHECK_ERROR(orMalloc(&more, 64), orErrorAssert);
  CHECK_ERROR(orStreamSynchronize(make_stream()), orErrorAssert);
  CHECK_OK(orFree(memory));
  CHECK_OK(orEventDestroy(event));
}

TEST(a_sticky_error_leaves_other_devices_alone) {
  CHECK_OK(launch_sticky_failure(make_stream(0)));
  CHECK_ERROR(orDeviceSynchronizeIndex(0), orErrorAssert);
  const orStream_t stream = make_stream(1);
  CHECK_OK(test::launch(stream, "working", [] { return orSuccess; }));
  CHECK_OK(orStreamSynchronize(stream));
}

TEST(a_sticky_error_that_a_call_has_returned_is_not_left_at_the_end) {
  CHECK_OK(launch_sticky_failure(nullptr));
  CHECK_ERROR(orDeviceTakeErrorAll(1000), orErrorAssert);
  CHECK_OK(orDeviceTakeErrorAll(1000));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorAssert);
}

TEST(an_error_is_sticky_for_the_kernel_that_says_so) {
  CHECK_OK(test::launch(nullptr, "recovering", [] {
    orSetKernelError("once", 0);
    orMakeKernelErrorSticky();
    orSetKernelError("again", 0);  // another error
    return orErrorAssert;
  }));
  CHECK_ERROR(orStreamSynchronize(nullptr), orErrorAssert);
  CHECK_OK(orStreamSynchronize(nullptr));
}
