#include "queue/event.h"

#include <memory>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "base/os.h"
#include "base/process.h"
#include "base/trace.h"
#include "queue/command.h"
#include "queue/device.h"
#include "queue/stream.h"

namespace openreg {
namespace {

void move_completion(void* to, void* from) {
  auto& source = *static_cast<CompletionRef*>(from);
  new (to) CompletionRef(std::move(source));
  source.~CompletionRef();
}

void destroy_completion(void* closure) { static_cast<CompletionRef*>(closure)->~CompletionRef(); }

// Workers know what to do with the closures of records and waits; see worker.cpp.
constexpr orKernel record_kernel{"orEventRecord", nullptr, move_completion, destroy_completion};
constexpr orKernel wait_kernel{"orStreamWaitEvent", nullptr, move_completion, destroy_completion};

// Submits a command whose closure is the completion.
orError_t submit(Stream& stream, CommandKind kind, const orKernel& kernel,
                 const CompletionRef& completion, const trace::Span* call, uint64_t* sequence) {
  alignas(CompletionRef) std::byte closure[sizeof(CompletionRef)];
  auto* reference = new (closure) CompletionRef(completion);
  try {
    const orError_t error = stream.submit({.kind = kind,
                                           .function = kernel.name,
                                           .kernel = &kernel,
                                           .closure = reference,
                                           .closure_size = sizeof(closure),
                                           .call = call},
                                          sequence);
    if (error != orSuccess) reference->~CompletionRef();
    return error;
  } catch (...) {
    reference->~CompletionRef();
    throw;
  }
}

constinit HandleTable<Event, HandleKind::Event> events;

}  // namespace

orEvent_t add_event(Event event, unsigned flags) {
  return to_handle<orEvent_t>(events.add(std::move(event), flags));
}

orError_t EventRef::find(orEvent_t handle, const char* function, EventRef* event) {
  if (const orError_t error = check_not_forked()) return error;
  event->handle_ = number_of(handle);
  event->function_ = function;
  event->slot_ = events.find(event->handle_);
  if (event->slot_ == nullptr) return event->fail_destroyed();
  event->flags_ = event->slot_->flags.load(std::memory_order_relaxed);
  return orSuccess;
}

// Calls `use` with the event, under its lock. Returns false if it has been destroyed.
template <typename Use>
bool EventRef::use(Use&& use) const {
  const Lock lock(slot_->mutex);
  if (slot_->handle.load(std::memory_order_acquire) != handle_) return false;
  use(slot_->object);
  return true;
}

orError_t EventRef::fail_destroyed() const { return fail_stale(handle_, function_, "an event"); }

// docs: event-record
orError_t EventRef::record(Stream& stream) const {
  if (is_interprocess()) {
    if (const orError_t error = record_shared(stream)) return error;
    stream.let_run(stream.submitted());  // this process cannot see when others wait for it
    return orSuccess;
  }
  while (const std::shared_ptr<CaptureTarget> capture = stream.capture()) {
    std::shared_ptr<const CapturePoint> point;
    bool has_ended = false;
    if (const orError_t error = capture->mark(stream, &point, &has_ended)) return error;
    if (has_ended) continue;
    set_latest({.completion = {}, .point = std::move(point)});
    return orSuccess;
  }
  EventRecord record{
      .completion = CompletionRef::make(), .point = {}, .device = stream.device().index()};
  uint64_t sequence = 0;
  if (const orError_t error = submit_record(stream, record.completion, &sequence)) return error;
  if (sequence > 0) set_latest(std::move(record));
  return orSuccess;
}
// docs: end

orError_t EventRef::record_shared(Stream& stream) const {
  if (const std::shared_ptr<CaptureTarget> capture = stream.capture()) {
    return capture->refuse(orErrorStreamCaptureUnsupported,
                           concat("orEventRecord: expected a stream that is not capturing for an "
                                  "interprocess event, got ",
                                  stream.name()));
  }
  std::shared_ptr<SharedEvent> shared;
  if (const orError_t error = get_shared(&shared)) return error;
  CompletionRef completion = CompletionRef::make();
  if (const orError_t error = completion->share(*shared)) return error;
  uint64_t sequence = stream.submitted();
  if (stream.retired() >= sequence && !stream.has_failure()) {
    // Nothing is pending: the others need not depend on this process living any longer.
    completion->resolve(os::now_ns(), nullptr);
  } else if (const orError_t error = submit(stream, CommandKind::Record, record_kernel, completion,
                                            nullptr, &sequence)) {
    return error;
  } else if (sequence == 0) {
    return orSuccess;
  }
  completion->bind(stream, sequence);
  if (is_peers()) {
    shared->publish(completion->shared());
    return orSuccess;
  }
  EventRecord record{
      .completion = std::move(completion), .point = {}, .device = stream.device().index()};
  use([&record](Event& event) {
    event.shared->publish(record.completion->shared());
    std::swap(event.latest, record);
  });
  return orSuccess;
}

orError_t EventRef::get_latest(EventRecord* latest) const {
  orError_t error = orSuccess;
  const bool is_found = use([latest, &error](Event& event) {
    *latest = event.latest;
    if (event.shared == nullptr) return;
    std::unique_ptr<RemoteRecord> remote;
    error = event.shared->find_latest(&remote);
    if (remote != nullptr) {
      *latest = {.completion = CompletionRef::make(std::move(remote)), .point = {}};
    }
  });
  return is_found ? error : fail_destroyed();
}

orError_t EventRef::find_peers_latest(CompletionRef* latest) const {
  std::shared_ptr<SharedEvent> shared;
  if (const orError_t error = get_shared(&shared)) return error;
  std::unique_ptr<RemoteRecord> record;
  if (const orError_t error = shared->find_latest(&record)) return error;
  if (record != nullptr) *latest = CompletionRef::make(std::move(record));
  return orSuccess;
}

orError_t EventRef::get_shared(std::shared_ptr<SharedEvent>* shared) const {
  return use([shared](Event& event) { *shared = event.shared; }) ? orSuccess : fail_destroyed();
}

// An event that has been destroyed meanwhile has no latest record.
void EventRef::set_latest(EventRecord record) const {
  use([&record](Event& event) { std::swap(event.latest, record); });
}

orError_t submit_record(Stream& stream, const CompletionRef& completion, uint64_t* sequence,
                        const trace::Span* call) {
  if (const orError_t error =
          submit(stream, CommandKind::Record, record_kernel, completion, call, sequence)) {
    return error;
  }
  if (*sequence > 0) completion->bind(stream, *sequence);
  return orSuccess;
}

orError_t submit_wait(Stream& stream, const CompletionRef& completion, uint64_t* sequence,
                      CommandKind kind, const trace::Span* call) {
  *sequence = 0;
  if (completion->is_complete() && completion->failure() == nullptr) return orSuccess;
  return submit(stream, kind, wait_kernel, completion, call, sequence);
}

namespace {

orError_t create_event(orEvent_t* event, unsigned flags) {
  if (const orError_t error = check_not_forked()) return error;
  if (event == nullptr) return fail(orErrorInvalidValue, "orEventCreate: event is null");
  if ((flags & ~(orEventBlockingSync | orEventDisableTiming | orEventInterprocess)) != 0) {
    return fail(orErrorInvalidValue,
                concat("orEventCreateWithFlags: expected a sum of ", orEventBlockingSync, ", ",
                       orEventDisableTiming, " and ", orEventInterprocess, ", got ", flags));
  }
  if ((flags & orEventInterprocess) == 0) {
    *event = to_handle<orEvent_t>(events.make(flags));
    return orSuccess;
  }
  if ((flags & orEventDisableTiming) == 0) {
    return fail(orErrorInvalidValue,
                "orEventCreateWithFlags: expected orEventDisableTiming with orEventInterprocess");
  }
  Event shared;
  if (const orError_t error = make_shared_event(&shared.shared)) return error;
  *event = add_event(std::move(shared), flags);
  return orSuccess;
}

// Stores the time and the device of an event's latest record.
orError_t time_of(orEvent_t event, const char* which, int64_t* time_ns, int* device) {
  EventRef found;
  if (const orError_t error = EventRef::find(event, "orEventElapsedTime", &found)) return error;
  EventRecord record;
  if (!found.is_peers()) {
    if (const orError_t error = found.get_latest(&record)) return error;
  }
  if (record.is_captured()) return record.point->refuse("orEventElapsedTime");
  const CompletionRef& completion = record.completion;
  if (!found.has_timing() || !completion) {
    return fail(
        orErrorInvalidResourceHandle,
        concat("orEventElapsedTime: expected an event that was recorded, with timing; the ", which,
               found.has_timing() ? " event was never recorded"
                                  : " event was created without timing"));
  }
  if (!completion->is_complete()) return orErrorNotReady;
  *time_ns = completion->time_ns();
  *device = record.device;
  return report(completion->failure());
}

// The completion that a caller waits for or asks about; empty if there is no record.
orError_t find_awaited(orEvent_t event, const char* function, CompletionRef* completion) {
  EventRef found;
  if (const orError_t error = EventRef::find(event, function, &found)) return error;
  if (found.is_peers()) {
    const orError_t error = found.find_peers_latest(completion);
    return error ? error : check_safe(function);
  }
  EventRecord record;
  if (const orError_t error = found.get_latest(&record)) return error;
  if (record.is_captured()) return record.point->refuse(function);
  *completion = std::move(record.completion);
  return check_safe(function);
}

// Makes later work of the stream wait for what the latest record of the event stands for.
orError_t wait_for_event(Stream& stream, const EventRecord& record) {
  if (record.is_captured()) return record.point->precede(stream);
  if (!record.completion) return orSuccess;
  if (const std::shared_ptr<CaptureTarget> capture = stream.capture()) {
    return capture->refuse(orErrorStreamCaptureIsolation,
                           concat("orStreamWaitEvent: expected an event recorded in ",
                                  capture->description(), ", got one recorded outside of it"));
  }
  uint64_t sequence = 0;
  return submit_wait(stream, record.completion, &sequence);
}

}  // namespace
}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orEventCreateWithFlags(orEvent_t* event, unsigned flags) {
  return guarded([&] { return create_event(event, flags); });
}

orError_t orEventCreate(orEvent_t* event) {
  return guarded([&] { return create_event(event, orEventDefault); });
}

orError_t orEventDestroy(orEvent_t event) {
  return guarded([&] {
    if (event == nullptr || is_forked()) return orSuccess;
    Event removed;
    if (!events.remove(number_of(event), &removed)) {
      return fail_stale(number_of(event), "orEventDestroy", "an event");
    }
    return orSuccess;
  });
}

orError_t orEventRecord(orEvent_t event, orStream_t handle) {
  return guarded([&] {
    EventRef found;
    if (const orError_t error = EventRef::find(event, "orEventRecord", &found)) return error;
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    return found.record(*stream);
  });
}

orError_t orEventQuery(orEvent_t event) {
  return guarded([&] {
    CompletionRef completion;
    if (const orError_t error = find_awaited(event, "orEventQuery", &completion)) return error;
    if (!completion) return orSuccess;
    if (completion->is_complete()) return report(completion->failure());
    if (Stream* stream = completion->stream()) stream->let_run(completion->sequence());
    return orErrorNotReady;
  });
}

orError_t orEventIsComplete(int* is_complete, orEvent_t event) {
  return guarded_result("orEventIsComplete", is_complete, [&] {
    CompletionRef completion;
    if (const orError_t error = find_awaited(event, "orEventIsComplete", &completion)) {
      return error;
    }
    *is_complete = !completion || completion->is_complete() ? 1 : 0;
    return orSuccess;
  });
}

orError_t orEventSynchronize(orEvent_t event) {
  return guarded([&] {
    CompletionRef completion;
    if (const orError_t error = find_awaited(event, "orEventSynchronize", &completion))
      return error;
    if (!completion) return orSuccess;
    const Stream* stream = completion->stream();
    const bool is_own = stream != nullptr;
    const trace::Span span(orActivitySynchronize, "orEventSynchronize",
                           is_own ? stream->device().index() : -1,
                           is_own ? stream->id() : UINT64_MAX);
    if (const orError_t error = completion->wait()) return error;
    return report(completion->failure());
  });
}

orError_t orEventElapsedTime(float* elapsed_ms, orEvent_t start, orEvent_t end) {
  return guarded_result("orEventElapsedTime", elapsed_ms, [&] {
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    int start_device = 0;
    int end_device = 0;
    if (const orError_t error = time_of(start, "start", &start_ns, &start_device)) return error;
    if (const orError_t error = time_of(end, "end", &end_ns, &end_device)) return error;
    if (start_device != end_device) {
      return fail(orErrorInvalidResourceHandle,
                  concat("orEventElapsedTime: expected two events of one device, got the start on "
                         "device ",
                         start_device, " and the end on device ", end_device));
    }
    *elapsed_ms = static_cast<float>(static_cast<double>(end_ns - start_ns) * 1e-6);
    return orSuccess;
  });
}

orError_t orStreamWaitEvent(orStream_t handle, orEvent_t event, unsigned flags) {
  return guarded([&] {
    EventRef found;
    if (const orError_t error = EventRef::find(event, "orStreamWaitEvent", &found)) return error;
    if (flags != 0) {
      return fail(orErrorInvalidValue, concat("orStreamWaitEvent: expected flags 0, got ", flags));
    }
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    EventRecord record;
    if (const orError_t error = found.is_peers() ? found.find_peers_latest(&record.completion)
                                                 : found.get_latest(&record)) {
      return error;
    }
    return wait_for_event(*stream, record);
  });
}

}  // extern "C"
