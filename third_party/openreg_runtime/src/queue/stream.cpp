#include "queue/stream.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "base/handle.h"
#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"
#include "base/setting.h"
#include "base/trace.h"
#include "base/wait_check.h"
#include "queue/capture_target.h"
#include "queue/device.h"
#include "queue/worker.h"

namespace openreg {
namespace {

constexpr std::align_val_t closure_alignment{OPENREG_CLOSURE_ALIGNMENT};

// All streams ever made. None is taken out, and a slot's stream never changes.
constinit HandleTable<Stream*, HandleKind::Stream> streams;

// The stream of a handle, null if the value is not that of one. It may have been destroyed.
Stream* look_up(orStream_t handle) OPENREG_UNCHECKED_LOCKING {
  HandleSlot<Stream*>* slot = streams.find(number_of(handle));
  return slot == nullptr ? nullptr : slot->object;
}

struct HostCall {
  orHostFn function;
  void* user_data;
};

orError_t run_host_function(void* closure) {
  const HostCall& call = *static_cast<HostCall*>(closure);
  call.function(call.user_data);
  return orSuccess;
}

// Work that does nothing.
constexpr orKernel nothing_kernel{"nothing", [](void*) { return orSuccess; }, nullptr, nullptr};
constexpr Submission nothing_submission{CommandKind::Fill, "nothing", &nothing_kernel, nullptr, 0};

constexpr orKernel host_function_kernel{"host function", run_host_function, nullptr, nullptr};

// With OPENREG_LAUNCH_BLOCKING a kernel runs on the caller's own closure: if it fails, the caller
// still owns that.
struct BorrowedClosure {
  orKernel kernel;  // the kernel's name, and functions that look through the pointers below
  const orKernel* original;
  void* closure;
};

orError_t run_borrowed(void* closure) {
  const BorrowedClosure& borrowed = **static_cast<BorrowedClosure**>(closure);
  const orError_t error = borrowed.original->run(borrowed.closure);
  if (error == orSuccess && borrowed.original->destroy != nullptr) {
    borrowed.original->destroy(borrowed.closure);
  }
  return error;
}

void describe_borrowed(const void* closure, orActivityRecord* record) {
  const BorrowedClosure& borrowed = **static_cast<BorrowedClosure* const*>(closure);
  if (borrowed.original->describe != nullptr) borrowed.original->describe(borrowed.closure, record);
}

orError_t fail_own_wait(const Stream& stream) {
  return fail(orErrorNotPermitted,
              concat("work on ", stream.name(), " cannot wait for its own stream"));
}

orError_t fail_exiting() {
  return fail(orErrorNotPermitted, "the process is exiting; its queued work was dropped");
}

// What a submission returns that the ring did not take.
orError_t refuse(CommandRing::Status status, const char* function, const Stream& stream) {
  switch (status) {
    case CommandRing::Status::Closed:
      return fail(orErrorInvalidResourceHandle,
                  concat(function, ": ", stream.name(), " has been destroyed"));
    case CommandRing::Status::Full:
      return fail(orErrorNotPermitted, concat(function, ": work on ", stream.name(),
                                              " submitted to its own stream, whose queue is full"));
    default:  // stopped
      return orSuccess;
  }
}

}  // namespace

Stream::Stream(Device& device, uint64_t id, unsigned flags, int priority)
    : device_(device), id_(id), flags_(flags), priority_(priority) {}

std::string Stream::name() const { return concat("stream ", id_, " of device ", device_.index()); }

orError_t Stream::start() {
  const Lock lock(mutex_);
  if (is_started_.load(std::memory_order_relaxed)) return orSuccess;
  if (const orError_t error = ring_.allocate()) return error;
  try {
    if (const orError_t error = Worker::start(*this)) {
      ring_.free();
      return error;
    }
  } catch (const std::bad_alloc&) {
    ring_.free();
    throw;
  }
  is_started_.store(true, std::memory_order_release);
  return orSuccess;
}

orError_t Stream::submit(const Submission& submission, uint64_t* sequence) {
  *sequence = 0;
  if (const orError_t error = check_sticky()) return error;
  while (const std::shared_ptr<CaptureTarget> capture = this->capture()) {
    if (submission.is_awaited) {  // the capture began after the caller had looked
      return capture->refuse(orErrorStreamCaptureUnsupported,
                             concat(submission.function,
                                    ": expected a stream that is not "
                                    "capturing, got stream ",
                                    id_));
    }
    bool has_ended = false;
    const orError_t error = capture->take(*this, submission, &has_ended);
    if (error != orSuccess || !has_ended) return error;
  }
  if (!is_started_.load(std::memory_order_acquire)) {
    if (const orError_t error = start()) return error;
  }
  std::optional<trace::Span> own_call;
  if (submission.call == nullptr) {
    own_call.emplace(orActivityRuntime, submission.function, device_.index(), id_);
  }
  const trace::Span& call = submission.call == nullptr ? *own_call : *submission.call;

  const bool is_large = submission.closure_size > OPENREG_MAX_INLINE_CLOSURE_SIZE;
  size_t counted_bytes = is_large ? submission.closure_size : 0;
  if (submission.kernel->owned_bytes != nullptr) {
    counted_bytes += submission.kernel->owned_bytes(submission.closure);
  }
  void* large_closure = nullptr;
  if (is_large) large_closure = ::operator new(submission.closure_size, closure_alignment);

  CommandRing::Slot slot;
  const bool is_scheduled = turns::is_on();
  const CommandRing::Status status = reserve(is_large ? sizeof(void*) : submission.closure_size,
                                             counted_bytes, is_scheduled, &slot);
  if (status != CommandRing::Status::Granted) {
    ::operator delete(large_closure, closure_alignment);
    return refuse(status, submission.function, *this);
  }

  Command& command = *slot.command;
  command.describe(submission);
  command.is_large = is_large;
  command.correlation_id = call.record().correlation_id;
  if (call.is_on()) {
    command.external_id = call.record().external_id;
    command.has_external_id = call.record().has_external_id != 0;
    command.submit_ns = call.record().start_ns;
  }
  if (is_large) *static_cast<void**>(command.inline_closure()) = large_closure;
  command.is_scheduled = is_scheduled;
  try {
    move_closure(submission, command.closure());
  } catch (...) {
    // The command has its place and its number: an empty one takes it.
    command.describe(nothing_submission);
    command.correlation_id = 0;
    ring_.commit(slot);
    if (is_scheduled) turns::order->add(*this, slot.sequence, command);
    throw;
  }
  ring_.commit(slot);
  *sequence = slot.sequence;
  if (is_scheduled) [[unlikely]]
    turns::order->add(*this, slot.sequence, command);
  return orSuccess;
}

// Waits while the ring is full, unless the calling thread is the stream's worker.
CommandRing::Status Stream::reserve(size_t closure_size, size_t counted_bytes, bool is_scheduled,
                                    CommandRing::Slot* slot) {
  const bool may_wait = Worker::current_stream() != this;
  if (is_scheduled && may_wait) [[unlikely]] {
    const wait_check::Suspension suspension;
    // Work without a waiting thread may not be running. An error means that the process exits.
    for (;;) {
      const CommandRing::Status status = ring_.reserve(closure_size, counted_bytes, false, slot);
      if (status != CommandRing::Status::Full) return status;
      if (wait(submitted()) != orSuccess) break;
    }
  }
  return ring_.reserve(closure_size, counted_bytes, may_wait, slot);
}

orError_t Stream::launch(const Submission& submission) {
  uint64_t sequence = 0;
  if (const orError_t error = submit(submission, &sequence)) return error;
  if (!settings().is_launch_blocking || sequence == 0) return orSuccess;
  const wait_check::Suspension suspension;
  return Worker::current_stream() == this ? orSuccess : finish(sequence);
}

// docs: stream-wait
bool Stream::is_idle() const {
  const uint64_t count = submitted();
  return retired() >= count;
}

orError_t Stream::launch_and_finish(Submission submission) {
  if (Worker::current_stream() == this) return fail_own_wait(*this);
  if (const orError_t error = check_may_wait(*this, submission.function)) return error;
  submission.is_awaited = true;
  uint64_t sequence = 0;
  if (const orError_t error = submit(submission, &sequence)) return error;
  if (sequence == 0) return fail_exiting();
  const trace::Span span(orActivitySynchronize, submission.function, device_.index(), id_);
  const wait_check::Suspension suspension;  // the work uses what the caller owns
  return finish(sequence);
}

orError_t Stream::wait(uint64_t count) {
  if (retired() >= count) return orSuccess;
  if (Worker::current_stream() == this) return fail_own_wait(*this);
  let_run(count);
  switch (timeline_.wait(count)) {
    case Timeline::WaitEnd::Stopped:
      return fail_exiting();
    case Timeline::WaitEnd::EndedEarly:
      return wait_check::fail_ended_early();
    case Timeline::WaitEnd::Retired:
      break;
  }
  if (turns::is_on()) turns::order->end_wait();
  return orSuccess;
}
// docs: end

orError_t Stream::finish(uint64_t count) {
  if (const orError_t error = wait(count)) return error;
  return report(take_failure());
}

void Stream::set_failure(FailureRef failure) {
  const Lock lock(mutex_);
  if (failure_ != nullptr && (failure_->is_sticky || !failure->is_sticky)) return;
  failure_ = std::move(failure);
  has_failure_.store(true, std::memory_order_relaxed);
}

FailureRef Stream::failure() const {
  if (!has_failure()) return nullptr;
  const Lock lock(mutex_);
  return failure_;
}

FailureRef Stream::take_failure() {
  if (!has_failure()) return nullptr;
  const Lock lock(mutex_);
  if (failure_ != nullptr && failure_->is_sticky) return failure_;
  has_failure_.store(false, std::memory_order_relaxed);
  return std::exchange(failure_, nullptr);
}

orError_t Stream::check_sticky() const {
  if (!has_failure()) [[likely]]
    return orSuccess;
  const FailureRef failure = this->failure();
  return failure != nullptr && failure->is_sticky ? report(failure) : orSuccess;
}

std::shared_ptr<CaptureTarget> Stream::capture() const {
  if (!is_capturing()) return nullptr;
  const Lock lock(mutex_);
  return capture_;
}

bool Stream::join(std::shared_ptr<CaptureTarget> capture) {
  const Lock lock(mutex_);
  if (capture_ != nullptr || is_destroyed()) return false;
  capture_ = std::move(capture);
  is_capturing_.store(true, std::memory_order_release);
  return true;
}

void Stream::leave_capture() {
  std::shared_ptr<CaptureTarget> left;  // let go of without the lock
  const Lock lock(mutex_);
  is_capturing_.store(false, std::memory_order_release);
  left.swap(capture_);
}

bool Stream::destroy() {
  {
    const Lock lock(mutex_);
    if (capture_ != nullptr || is_destroyed()) return false;
    is_destroyed_.store(true, std::memory_order_relaxed);
  }
  ring_.close();
  if (turns::is_on()) turns::order->let_run(*this, submitted(), false);
  return true;
}

bool Stream::has_ended() const { return is_destroyed() && is_idle() && !has_failure(); }

Stream* make_stream(Device& device, uint64_t id, unsigned flags, int priority) {
  auto stream = std::make_unique<Stream>(device, id, flags, priority);
  stream->handle_ = to_handle<orStream_t>(streams.add(stream.get()));
  return stream.release();
}

orError_t find_stream(orStream_t handle, Stream** stream) {
  if (const orError_t error = check_not_forked()) return error;
  if (handle == nullptr) {
    Device* device = nullptr;
    if (const orError_t error = Device::get(current_device(), &device)) return error;
    *stream = &device->default_stream();
    return orSuccess;
  }
  Stream* found = look_up(handle);
  if (found == nullptr) return fail_stale(number_of(handle), "", "a stream");
  if (found->is_destroyed()) return fail_destroyed(*found);
  *stream = found;
  return orSuccess;
}

orError_t fail_destroyed(const Stream& stream) {
  return fail(orErrorInvalidResourceHandle, concat(stream.name(), " has been destroyed"));
}

namespace {

orError_t create_stream(orStream_t* stream, unsigned flags, int priority) {
  if (stream == nullptr) return fail(orErrorInvalidValue, "orStreamCreate: stream is null");
  if ((flags & ~orStreamNonBlocking) != 0) {
    return fail(orErrorInvalidValue, concat("orStreamCreateWithPriority: expected flags 0 or ",
                                            orStreamNonBlocking, ", got ", flags));
  }
  Device* device = nullptr;
  if (const orError_t error = Device::get(current_device(), &device)) return error;
  priority = std::clamp(priority, greatest_stream_priority, least_stream_priority);
  *stream = device->create_stream(flags, priority)->handle();
  return orSuccess;
}

// Waits for a stream, if `may_wait` says so of it and the number of commands to wait for.
template <typename MayWait>
orError_t synchronize_stream(orStream_t handle, MayWait&& may_wait) {
  return guarded([&] {
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    if (const orError_t error = check_may_wait(*stream, "orStreamSynchronize")) return error;
    const uint64_t count = stream->submitted();
    if (!may_wait(*stream, count)) return orErrorNotReady;
    const trace::Span span(orActivitySynchronize, "orStreamSynchronize", stream->device().index(),
                           stream->id());
    return stream->finish(count);
  });
}

// Calls `get` with the stream of a handle.
template <typename Value, typename Get>
orError_t get_property(orStream_t handle, Value* value, Get&& get) {
  return guarded([&] {
    if (value == nullptr) return fail(orErrorInvalidValue, "a pointer to the result is null");
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    *value = get(*stream);
    return orSuccess;
  });
}

}  // namespace
}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orStreamCreate(orStream_t* stream) {
  return guarded([&] { return create_stream(stream, orStreamDefault, least_stream_priority); });
}

orError_t orStreamCreateWithPriority(orStream_t* stream, unsigned flags, int priority) {
  return guarded([&] { return create_stream(stream, flags, priority); });
}

orError_t orStreamDestroy(orStream_t handle) {
  return guarded([&] {
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    if (stream == &stream->device().default_stream()) {
      return fail(orErrorNotPermitted, "orStreamDestroy: a default stream cannot be destroyed");
    }
    do {
      if (const orError_t error = check_not_capturing(*stream, "orStreamDestroy")) return error;
      if (stream->is_destroyed()) return fail_destroyed(*stream);  // by another thread
    } while (!stream->destroy());
    return orSuccess;
  });
}

orError_t orGetDefaultStream(orStream_t* stream, int device) {
  return guarded_result("orGetDefaultStream", stream, [&] {
    Device* found = nullptr;
    if (const orError_t error = Device::get(device, &found)) return error;
    *stream = found->default_stream().handle();
    return orSuccess;
  });
}

orError_t orStreamQuery(orStream_t handle) {
  return guarded([&] {
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    if (const orError_t error = check_may_wait(*stream, "orStreamQuery")) return error;
    const uint64_t count = stream->submitted();
    if (stream->retired() >= count) return report(stream->take_failure());
    stream->let_run(count);
    return orErrorNotReady;
  });
}

orError_t orStreamSynchronize(orStream_t handle) {
  return synchronize_stream(handle, [](Stream&, uint64_t) { return true; });
}

orError_t orStreamTrySynchronize(orStream_t handle) {
  return synchronize_stream(
      handle, [](Stream& stream, uint64_t count) { return stream.retired() >= count; });
}

orError_t orLaunchKernel(const orKernel* kernel, void* closure, size_t closure_size,
                         orStream_t handle, unsigned flags) {
  return guarded([&] {
    if (kernel == nullptr || kernel->name == nullptr || kernel->run == nullptr ||
        (closure == nullptr && closure_size > 0)) {
      return fail(
          orErrorInvalidValue,
          "orLaunchKernel: expected a kernel with a name and a run function, and a closure");
    }
    if (closure_size > OPENREG_MAX_CLOSURE_SIZE) {
      return fail(orErrorInvalidValue,
                  concat("orLaunchKernel: expected a closure of at most ", OPENREG_MAX_CLOSURE_SIZE,
                         " bytes, got ", closure_size));
    }
    if ((flags & ~orLaunchSkip) != 0) {
      return fail(orErrorInvalidValue, concat("orLaunchKernel: expected flags out of orLaunchSkip, "
                                              "got ",
                                              flags));
    }
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    const Submission submission{.kind = CommandKind::Kernel,
                                .function = "orLaunchKernel",
                                .kernel = kernel,
                                .closure = closure,
                                .closure_size = closure_size,
                                .is_skipped = (flags & orLaunchSkip) != 0};
    if (!settings().is_launch_blocking || Worker::current_stream() == stream) {
      return stream->launch(submission);
    }
    BorrowedClosure borrowed{
        {kernel->name, run_borrowed, nullptr, nullptr, describe_borrowed}, kernel, closure};
    BorrowedClosure* pointer = &borrowed;
    return stream->launch({.kind = CommandKind::Kernel,
                           .function = "orLaunchKernel",
                           .kernel = &borrowed.kernel,
                           .closure = &pointer,
                           .closure_size = sizeof(pointer),
                           .is_skipped = submission.is_skipped,
                           .if_captured = &submission});
  });
}

orError_t orLaunchHostFunc(orStream_t handle, orHostFn function, void* user_data) {
  return guarded([&] {
    if (function == nullptr) {
      return fail(orErrorInvalidValue, "orLaunchHostFunc: function is null");
    }
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    HostCall call{function, user_data};
    return stream->launch({CommandKind::HostFunction, "orLaunchHostFunc", &host_function_kernel,
                           &call, sizeof(call)});
  });
}

orError_t orSetIdleFunction(void (*function)(void)) {
  return guarded([&] {
    if (Worker::current_stream() == nullptr) {
      return fail(orErrorNotPermitted,
                  "orSetIdleFunction: only work on a stream can say what its thread calls");
    }
    Worker::set_idle_function(function);
    return orSuccess;
  });
}

orError_t orStreamGetDevice(orStream_t stream, int* device) {
  return get_property(stream, device, [](const Stream& found) { return found.device().index(); });
}

orError_t orStreamGetPriority(orStream_t stream, int* priority) {
  return get_property(stream, priority, [](const Stream& found) { return found.priority(); });
}

orError_t orStreamGetFlags(orStream_t stream, unsigned* flags) {
  return get_property(stream, flags, [](const Stream& found) { return found.flags(); });
}

orError_t orStreamGetId(orStream_t stream, unsigned long long* id) {
  return get_property(stream, id, [](const Stream& found) { return found.id(); });
}

orError_t orStreamGetById(orStream_t* stream, int device, unsigned long long id) {
  return guarded_result("orStreamGetById", stream, [&] {
    Device* found = nullptr;
    if (const orError_t error = Device::get(device, &found)) return error;
    const Stream* live = found->find_stream(id);
    if (live == nullptr) {
      return fail(orErrorInvalidResourceHandle,
                  concat("orStreamGetById: device ", device, " has no live stream ", id));
    }
    *stream = live->handle();
    return orSuccess;
  });
}

orError_t orStreamHasEnded(int* has_ended, orStream_t stream) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    if (has_ended == nullptr || stream == nullptr) {
      return fail(orErrorInvalidValue, "orStreamHasEnded: a pointer is null");
    }
    const Stream* found = look_up(stream);
    if (found == nullptr) return fail_stale(number_of(stream), "orStreamHasEnded", "a stream");
    *has_ended = found->is_destroyed() && found->is_idle() ? 1 : 0;
    return orSuccess;
  });
}

orError_t orStreamIsAlone(int* is_alone, orStream_t handle) {
  return guarded_result("orStreamIsAlone", is_alone, [&] {
    Stream* own = nullptr;
    if (const orError_t error = find_stream(handle, &own)) return error;
    const std::vector<Stream*> streams = all_streams();
    *is_alone = std::all_of(streams.begin(), streams.end(), [&](const Stream* stream) {
      return stream == own || stream->is_idle();
    });
    return orSuccess;
  });
}

orError_t orStreamValidate(uintptr_t handle) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    const Stream* stream = look_up(reinterpret_cast<orStream_t>(handle));
    if (stream != nullptr && !stream->is_destroyed()) return orSuccess;
    return fail(orErrorInvalidResourceHandle,
                concat("orStreamValidate: ", handle, " is not the handle of a live stream"));
  });
}

}  // extern "C"
