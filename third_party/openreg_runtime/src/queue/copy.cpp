#include <cstring>

#include "base/os.h"
#include "base/process.h"
#include "base/trace.h"
#include "memory/allocation.h"
#include "queue/capture_target.h"
#include "queue/command.h"
#include "queue/device.h"
#include "queue/stream.h"

namespace openreg {
namespace {

struct CopyTask {
  void* destination;
  const void* source;
  size_t size;
};

struct FillTask {
  void* destination;
  int value;
  size_t size;
};

void run(const CopyTask& task) { std::memmove(task.destination, task.source, task.size); }

orError_t run_copy(void* closure) {
  run(*static_cast<CopyTask*>(closure));
  return orSuccess;
}

// The closure of a staged copy: the task, followed by the bytes.
orError_t run_staged_copy(void* closure) {
  CopyTask task = *static_cast<CopyTask*>(closure);
  task.source = static_cast<CopyTask*>(closure) + 1;
  run(task);
  return orSuccess;
}

// Moves a task that points at its source into a closure that contains it.
void stage(void* to, void* from) {
  const CopyTask& task = *static_cast<CopyTask*>(from);
  std::memcpy(to, &task, sizeof(task));
  std::memcpy(static_cast<CopyTask*>(to) + 1, task.source, task.size);
}

orError_t run_fill(void* closure) {
  const FillTask& task = *static_cast<FillTask*>(closure);
  std::memset(task.destination, task.value, task.size);
  return orSuccess;
}

constexpr orKernel copy_kernel{"copy", run_copy, nullptr, nullptr};
constexpr orKernel staged_copy_kernel{"copy", run_staged_copy, stage, nullptr};
constexpr orKernel fill_kernel{"fill", run_fill, nullptr, nullptr};

orMemcpyKind copy_kind_of(const Place& destination, const Place& source) {
  const bool to_device = destination.type == orMemoryTypeDevice;
  const bool from_device = source.type == orMemoryTypeDevice;
  if (to_device) return from_device ? orMemcpyDeviceToDevice : orMemcpyHostToDevice;
  return from_device ? orMemcpyDeviceToHost : orMemcpyHostToHost;
}

// The names of the kinds but orMemcpyDefault, by their numbers.
constexpr const char* kind_names[] = {"host to host", "host to device", "device to host",
                                      "device to device"};

struct Copy {
  const char* function;
  Place destination;
  Place source;
  size_t size;
  orMemcpyKind kind;

  CopyTask task() const { return {destination.kernel_address, source.kernel_address, size}; }

  Submission submission(const Stream& stream, const orKernel& kernel, CopyTask* closure,
                        size_t closure_size) const {
    const bool is_between_devices =
        kind == orMemcpyDeviceToDevice && destination.device != source.device;
    const int peer = source.device != stream.device().index() ? source.device : destination.device;
    return {.kind = CommandKind::Copy,
            .function = function,
            .kernel = &kernel,
            .closure = closure,
            .closure_size = closure_size,
            .bytes = size,
            .memcpy_kind = kind,
            .peer_device = is_between_devices ? peer : -1};
  }
};

// Checks the arguments of a copy of more than 0 bytes.
orError_t check_copy(void* destination, const void* source, size_t size, orMemcpyKind kind,
                     const char* function, Copy* copy) {
  copy->function = function;
  copy->size = size;
  if (const orError_t error = find_place(destination, size, function, &copy->destination)) {
    return error;
  }
  if (const orError_t error = find_place(source, size, function, &copy->source)) return error;
  copy->kind = copy_kind_of(copy->destination, copy->source);
  if (kind == orMemcpyDefault || kind == copy->kind) return orSuccess;
  return fail(orErrorInvalidMemcpyDirection,
              concat(function, ": the pointers make it a copy ", kind_names[copy->kind],
                     ", the kind given is ", kind_names[kind]));
}

orError_t check_kind(orMemcpyKind kind, const char* function) {
  if (kind >= orMemcpyHostToHost && kind <= orMemcpyDefault) return orSuccess;
  return fail(orErrorInvalidMemcpyDirection,
              concat(function, ": expected an orMemcpyKind, got ", static_cast<int>(kind)));
}

// Copies and waits. If there is nothing to wait for, the calling thread copies by itself, which
// avoids waking the worker and being woken.
orError_t copy_and_wait(Stream& stream, const Copy& copy) {
  if (const orError_t error = check_may_wait(stream, copy.function)) return error;
  CopyTask task = copy.task();
  const Submission submission = copy.submission(stream, copy_kernel, &task, sizeof(task));
  if (!stream.is_idle() || stream.has_failure()) return stream.launch_and_finish(submission);
  if (!trace::is_on()) {
    run(task);
    return orSuccess;
  }
  orActivityRecord record = {};
  record.kind = orActivityMemcpy;
  record.name = copy.function;
  record.bytes = submission.bytes;
  record.memcpy_kind = submission.memcpy_kind;
  record.peer_device = submission.peer_device;
  record.start_ns = os::now_ns();
  run(task);
  record.end_ns = os::now_ns();
  trace::keep_host_work(record, copy.function, stream.device().index(), stream.id());
  return orSuccess;
}

orError_t enqueue_copy(Stream& stream, const Copy& copy) {
  CopyTask task = copy.task();
  const bool has_unregistered_source = copy.source.type == orMemoryTypeUnregistered;
  if (copy.destination.type == orMemoryTypeUnregistered ||
      (has_unregistered_source && copy.size > OPENREG_MAX_STAGED_COPY)) {
    return copy_and_wait(stream, copy);
  }
  if (has_unregistered_source) {
    Submission submission =
        copy.submission(stream, staged_copy_kernel, &task, sizeof(task) + copy.size);
    submission.is_staged = true;
    return stream.launch(submission);
  }
  return stream.launch(copy.submission(stream, copy_kernel, &task, sizeof(task)));
}

// A handle is checked even if there is nothing to do. Without one, `stream` stays null.
orError_t find_given_stream(const orStream_t* handle, Stream** stream) {
  return handle == nullptr ? check_not_forked() : find_stream(*handle, stream);
}

// In place of none: the default stream of the device involved, that of the destination if there are
// two.
orError_t find_missing_stream(const Place& destination, const Place& source, Stream** stream) {
  if (*stream != nullptr) return orSuccess;
  int index = destination.device >= 0 ? destination.device : source.device;
  if (index < 0) index = current_device();
  Device* device = nullptr;
  if (const orError_t error = Device::get(index, &device)) return error;
  *stream = &device->default_stream();
  return orSuccess;
}

// `submit` is enqueue_copy() or copy_and_wait(). A null handle means no stream was given.
orError_t copy(void* destination, const void* source, size_t size, orMemcpyKind kind,
               const orStream_t* handle, const char* function,
               orError_t (*submit)(Stream&, const Copy&)) {
  Stream* stream = nullptr;
  if (const orError_t error = find_given_stream(handle, &stream)) return error;
  if (const orError_t error = check_kind(kind, function)) return error;
  if (size == 0) return orSuccess;
  Copy copy;
  if (const orError_t error = check_copy(destination, source, size, kind, function, &copy)) {
    return error;
  }
  if (const orError_t error = find_missing_stream(copy.destination, copy.source, &stream)) {
    return error;
  }
  return submit(*stream, copy);
}

orError_t fill(void* pointer, int value, size_t size, const orStream_t* handle,
               const char* function) {
  Stream* stream = nullptr;
  if (const orError_t error = find_given_stream(handle, &stream)) return error;
  if (size == 0) return orSuccess;
  Place place;
  if (const orError_t error = find_place(pointer, size, function, &place)) return error;
  if (place.type == orMemoryTypeUnregistered) {
    return fail(orErrorInvalidValue,
                concat(function, ": expected device or pinned memory, got ", pointer));
  }
  if (const orError_t error = find_missing_stream(place, place, &stream)) return error;
  FillTask task{place.kernel_address, value, size};
  const Submission submission{.kind = CommandKind::Fill,
                              .function = function,
                              .kernel = &fill_kernel,
                              .closure = &task,
                              .closure_size = sizeof(task),
                              .bytes = size};
  return handle == nullptr ? stream->launch_and_finish(submission) : stream->launch(submission);
}

}  // namespace
}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orMemcpy(void* destination, const void* source, size_t size, orMemcpyKind kind) {
  return guarded(
      [&] { return copy(destination, source, size, kind, nullptr, "orMemcpy", copy_and_wait); });
}

orError_t orMemcpyAsync(void* destination, const void* source, size_t size, orMemcpyKind kind,
                        orStream_t stream) {
  return guarded([&] {
    return copy(destination, source, size, kind, &stream, "orMemcpyAsync", enqueue_copy);
  });
}

orError_t orMemcpyWithStream(void* destination, const void* source, size_t size, orMemcpyKind kind,
                             orStream_t stream) {
  return guarded([&] {
    return copy(destination, source, size, kind, &stream, "orMemcpyWithStream", copy_and_wait);
  });
}

orError_t orMemset(void* pointer, int value, size_t size) {
  return guarded([&] { return fill(pointer, value, size, nullptr, "orMemset"); });
}

orError_t orMemsetAsync(void* pointer, int value, size_t size, orStream_t stream) {
  return guarded([&] { return fill(pointer, value, size, &stream, "orMemsetAsync"); });
}

}  // extern "C"
