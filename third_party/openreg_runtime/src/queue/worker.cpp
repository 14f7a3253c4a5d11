#include "queue/worker.h"

#include <new>
#include <thread>
#include <utility>

#include "base/os.h"
#include "base/process.h"
#include "base/trace.h"
#include "queue/completion.h"
#include "queue/device.h"
#include "queue/stream.h"

namespace openreg {
namespace {

thread_local Stream* this_workers_stream = nullptr;

// How long a worker waits for memory before it tries again.
constexpr int64_t retry_ns = 1'000'000;

}  // namespace

orError_t Worker::start(Stream& stream) {
  try {
    std::thread([&stream] { Worker(stream).run(); }).detach();
    return orSuccess;
  } catch (const std::system_error& error) {
    return fail(orErrorOperatingSystem, concat("cannot start a stream's thread: ", error.what()));
  }
}

Stream* Worker::current_stream() { return this_workers_stream; }

void Worker::set_idle_function(void (*function)()) {
  this_workers_stream->ring_.set_idle_function(function);
}

// docs: worker-run
void Worker::run() {
  this_workers_stream = &stream_;
  os::block_process_signals();
  try {
    os::set_thread_name(concat("or-dev", stream_.device().index(), "-s", stream_.id()));
  } catch (const std::bad_alloc&) {
    // The thread has no name; its work runs.
  }
  CommandRing& ring = stream_.ring_;
  while (Command* command = ring.next()) {
    const bool is_scheduled = command->is_scheduled;
    if (is_scheduled) [[unlikely]]
      turns::order->take_turn(stream_, stream_.retired() + 1);
    if (waits(*command)) await(*command);
    // An exit sets its flag before it looks at ours.
    stream_.is_running_.store(true);
    if (is_exiting()) park();
    execute(*command);
    ring.pop(command);
    stream_.timeline_.retire();
    stream_.is_running_.store(false, std::memory_order_release);
    if (is_scheduled) [[unlikely]]
      turns::order->end_turn(stream_);
  }
  if (is_exiting()) park();
  ring.free();
}
// docs: end

// Runs the command, or drops it if the stream has failed, and destroys its closure.
void Worker::execute(Command& command) {
  switch (command.kind) {
    case CommandKind::Record:
      record(command);
      break;
    case CommandKind::Recover:
      stream_.take_failure();
      break;
    case CommandKind::Wait:
    case CommandKind::Follow:
      break;
    case CommandKind::Segment:
      if (!stream_.has_failure()) run_segment(command);
      break;
    default:
      if (!stream_.has_failure()) work(command, stream_.device().index());
  }
  void* closure = command.closure();
  if (command.kernel->destroy != nullptr) command.kernel->destroy(closure);
  if (command.is_large) {
    ::operator delete(closure, std::align_val_t{OPENREG_CLOSURE_ALIGNMENT});
  }
  if (command.is_counted) stream_.ring_.uncount(command.counted_bytes());
}

bool Worker::waits(const Command& command) const {
  if (command.kind == CommandKind::Wait) return !stream_.has_failure();
  return command.kind == CommandKind::Follow;
}

void Worker::await(Command& command) {
  const CompletionRef& completion = *static_cast<CompletionRef*>(command.closure());
  for (;;) {
    try {
      if (completion->wait() != orSuccess) park();
      break;
    } catch (const std::bad_alloc&) {
      os::sleep_ns(
          retry_ns);  // the wait is required, and there is no caller to report the error to
    }
  }
  if (completion->failure() != nullptr) stream_.set_failure(completion->failure());
}

void Worker::record(Command& command) {
  const CompletionRef& completion = *static_cast<CompletionRef*>(command.closure());
  completion->resolve(os::now_ns(), stream_.failure());
}

// Runs one piece of work. Returns false if it fails, and with it the stream.
bool Worker::work(Command& command, int device) {
  if (command.is_skipped) return true;
  set_current_device(device);
  const bool is_traced = command.correlation_id != 0;
  orActivityRecord record;
  if (is_traced) record = command.activity(device, stream_.id());
  const orError_t error = call(command);
  if (is_traced) {
    record.end_ns = os::now_ns();
    trace::keep(record);
  }
  if (error != orSuccess) fail_stream(command, error);
  return error == orSuccess;
}

// docs: segment-run
void Worker::run_segment(Command& launch) {
  const CommandSegment& segment = *static_cast<CommandSegment*>(launch.closure());
  for (Command* command : *segment.commands) {
    if (is_exiting()) park();
    command->correlation_id = launch.correlation_id;
    if (launch.correlation_id != 0) {
      command->external_id = launch.external_id;
      command->has_external_id = launch.has_external_id;
      command->submit_ns = launch.submit_ns;
    }
    if (!work(*command, segment.device)) return;
  }
}
// docs: end

// Runs the closure. Whatever leaves it becomes a code, and a text as of orSetKernelError.
orError_t Worker::call(Command& command) {
  const auto failed_with = [](const char* text) {
    orSetKernelError(text, 0);
    return orErrorLaunchFailure;
  };
  try {
    const orError_t error = command.kernel->run(command.closure());
    if (command.kind == CommandKind::HostFunction) {
      return has_kernel_error() ? orErrorLaunchFailure : orSuccess;
    }
    if (error == orSuccess) take_kernel_error();
    return error;
  } catch (const std::exception& error) {
    return failed_with(error.what());
  } catch (...) {
    return failed_with("unknown exception");
  }
}

void Worker::fail_stream(const Command& command, orError_t code) {
  KernelError error = take_kernel_error();
  // "Not ready" is no error of a kernel, and would be taken for the answer to a query.
  if (code == orErrorNotReady) code = orErrorLaunchFailure;
  if (!is_known(code)) code = orErrorUnknown;
  try {
    const std::string what = command.kind == CommandKind::HostFunction
                                 ? "a host function"
                                 : concat("kernel '", command.name(), "'");
    std::string text = error.text.empty() ? orGetErrorString(code) : error.text;
    if (!error.location.empty()) text += concat(", at ", error.location);
    if (error.address != 0) text += concat(", address ", reinterpret_cast<void*>(error.address));
    auto failure = std::make_shared<Failure>(
        code, concat(what, " on ", stream_.name(), " failed: ", text), error.tag, os::now_ns(),
        error.is_sticky, KernelPlace{command.name(), std::move(error.location), error.address});
    error.is_sticky ? stream_.device().fail(std::move(failure))
                    : stream_.set_failure(std::move(failure));
  } catch (const std::bad_alloc&) {
    stream_.set_failure(spare_failure(code));
  }
}

// Ends the worker's life as the process exits: nothing it did not run will be done.
void Worker::park() {
  stream_.timeline_.stop();
  stream_.is_running_.store(false);
  os::park();
}

}  // namespace openreg
