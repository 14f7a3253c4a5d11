// The capture seam: where submissions go while a stream has a sink.
#include "check.h"
#include "graph.h"
#include "stream.h"

namespace {

// Runs what it takes at once, on the submitting thread, or refuses it.
class ImmediateSink : public openreg::CommandSink {
 public:
  orError_t take(openreg::Stream&, const openreg::Submission& submission) override {
    taken.emplace_back(submission.function);
    if (refusal != orSuccess) return openreg::fail(refusal, "refused");
    const bool has_work = submission.kernel->run != nullptr;
    const orError_t error = has_work ? submission.kernel->run(submission.closure) : orSuccess;
    if (submission.kernel->destroy != nullptr) submission.kernel->destroy(submission.closure);
    return error;
  }

  std::vector<std::string> taken;
  orError_t refusal = orSuccess;
};

orStreamCaptureStatus status_of(orStream_t stream) {
  orStreamCaptureStatus status = orStreamCaptureStatusInvalidated;
  CHECK_OK(orStreamIsCapturing(stream, &status));
  return status;
}

}  // namespace

TEST(a_stream_captures_while_it_has_a_sink) {
  const orStream_t stream = test::make_stream();
  ImmediateSink sink;
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusNone);
  openreg::set_command_sink(*stream, &sink);
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusActive);
  CHECK_EQUAL(status_of(nullptr), orStreamCaptureStatusNone);
  openreg::set_command_sink(*stream, nullptr);
  CHECK_EQUAL(status_of(stream), orStreamCaptureStatusNone);
  CHECK_ERROR(orStreamIsCapturing(stream, nullptr), orErrorInvalidValue);
}

TEST(every_submission_goes_to_the_sink) {
  const orStream_t stream = test::make_stream();
  const orEvent_t event = test::make_event();
  char* memory = test::device_malloc(100);
  char* pinned = test::host_malloc(100);
  CHECK_OK(orEventRecord(event, nullptr));
  CHECK_OK(orEventSynchronize(event));
  ImmediateSink sink;
  openreg::set_command_sink(*stream, &sink);
  int ran = 0;
  CHECK_OK(test::launch(stream, "kernel", [&] { return ++ran, orSuccess; }));
  CHECK_OK(orLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &ran));
  CHECK_OK(orMemsetAsync(memory, 's', 100, stream));
  CHECK_OK(orMemcpyAsync(pinned, memory, 100, orMemcpyDeviceToHost, stream));
  CHECK_OK(orStreamWaitEvent(stream, event, 0));
  CHECK_OK(orEventRecord(event, stream));
  openreg::set_command_sink(*stream, nullptr);
  CHECK_EQUAL(ran, 2);
  CHECK_EQUAL(pinned[99], 's');
  const std::vector<std::string> expected = {"orLaunchKernel",    "orLaunchHostFunc",
                                             "orMemsetAsync",     "orMemcpyAsync",
                                             "orStreamWaitEvent", "orEventRecord"};
  CHECK(sink.taken == expected);
  CHECK_EQUAL(stream->submitted(), 0u);
  CHECK_OK(orEventQuery(event));
  CHECK_OK(orEventDestroy(event));
}

TEST(a_capturing_stream_cannot_be_waited_for_or_queried) {
  char* memory = test::device_malloc(size_t{1} << 20);
  std::string host(size_t{1} << 20, '?');
  orStream_t stream = nullptr;
  CHECK_OK(orGetDefaultStream(&stream, 0));
  ImmediateSink sink;
  openreg::set_command_sink(*stream, &sink);
  CHECK_ERROR(orStreamSynchronize(stream), orErrorStreamCaptureUnsupported);
  CHECK_ERROR(orStreamQuery(stream), orErrorStreamCaptureUnsupported);
  CHECK_ERROR(orMemset(memory, 0, 1), orErrorStreamCaptureUnsupported);
  CHECK_ERROR(orMemcpy(host.data(), memory, 1, orMemcpyDefault), orErrorStreamCaptureUnsupported);
  CHECK_ERROR(orMemcpyAsync(host.data(), memory, 1, orMemcpyDefault, stream),
              orErrorStreamCaptureUnsupported);
  CHECK_ERROR(orMemcpyAsync(memory, host.data(), host.size(), orMemcpyDefault, stream),
              orErrorStreamCaptureUnsupported);
  CHECK(sink.taken.empty());
}

TEST(a_sinks_refusal_is_the_submissions_error) {
  const orStream_t stream = test::make_stream();
  const orEvent_t event = test::make_event();
  ImmediateSink sink;
  sink.refusal = orErrorStreamCaptureInvalidated;
  openreg::set_command_sink(*stream, &sink);
  CHECK_ERROR(test::launch(stream, "refused", [] { return orSuccess; }),
              orErrorStreamCaptureInvalidated);
  CHECK_ERROR(orEventRecord(event, stream), orErrorStreamCaptureInvalidated);
  CHECK_OK(orEventDestroy(event));
}

TEST(blocking_launches_do_not_wait_while_capturing) {
  CHECK_EQUAL(setenv("OPENREG_LAUNCH_BLOCKING", "1", 1), 0);
  const orStream_t stream = test::make_stream();
  ImmediateSink sink;
  openreg::set_command_sink(*stream, &sink);
  int ran = 0;
  CHECK_OK(test::launch(stream, "kernel", [&] { return ++ran, orSuccess; }));
  CHECK_EQUAL(ran, 1);
}
