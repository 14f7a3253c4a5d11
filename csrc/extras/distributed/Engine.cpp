#include "csrc/extras/distributed/Engine.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <openreg/stream.h>

#include <array>
#include <utility>

#include "csrc/core/CaptureMode.h"
#include "csrc/extras/distributed/LockWithoutGil.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/core/Event.h"
#include "torch_openreg/core/Exception.h"
#include "torch_openreg/core/Observer.h"

namespace at::openreg {
namespace {

using c10::openreg::getCurrentOpenRegStream;
using c10::openreg::kDeviceType;
using c10::openreg::Lock;
using c10::openreg::Mutex;
using c10::openreg::OpenRegStream;
using c10::openreg::RelaxedCaptureGuard;

// Streams reserved for groups. Streams of the pool are reused in turn, and two operations that wait
// for other ranks on the same stream can deadlock. These streams are never destroyed, because
// tensors may have been recorded on them; a group that ends returns its streams for later groups.
class GroupStreams {
 public:
  static GroupStreams& instance() {
    static GroupStreams* streams = new GroupStreams();
    return *streams;
  }

  OpenRegStream take(c10::Device device, int priority) {
    {
      const Lock lock(mutex_);
      std::vector<OpenRegStream>& free = free_[{device.index(), priority}];
      for (auto it = free.begin(); it != free.end(); ++it) {
        // Work of the previous group may still be pending on it.
        if (!it->isCapturing() && isIdle(*it)) {
          const OpenRegStream stream = *it;
          free.erase(it);
          return stream;
        }
      }
    }
    const c10::DeviceGuard guard(device);
    orStream_t handle = nullptr;
    OPENREG_CHECK(orStreamCreateWithPriority(&handle, orStreamNonBlocking, priority));
    return c10::openreg::getStreamFromExternal(handle, device.index());
  }

  void giveBack(const OpenRegStream& stream, int priority) {
    const Lock lock(mutex_);
    free_[{stream.device_index(), priority}].push_back(stream);
  }

 private:
  static bool isIdle(const OpenRegStream& stream) {
    // These streams take no part in captures, so a capture in progress does not forbid their
    // creation.
    const RelaxedCaptureGuard relaxed;
    c10::openreg::OpenRegEvent event;
    event.record(stream);
    return event.isComplete();
  }

  Mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, int>, std::vector<OpenRegStream>> free_
      OPENREG_GUARDED_BY(mutex_);
};

void recordStreams(const std::vector<Collective>& collectives, const OpenRegStream& stream) {
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(kDeviceType);
  for (const Collective& collective : collectives) {
    for (const Access& access : collective.accesses) {
      allocator->recordStream(access.tensor.storage().data_ptr(), stream.unwrap());
    }
  }
}

// Reports what the operation reads and writes to observers.
c10::openreg::Verdict observeCollectives(const std::vector<Collective>& collectives,
                                         CollectiveKind kind, const OpenRegStream& stream) {
  const auto gather = [&](c10::openreg::OperandList& operands) {
    for (const Collective& collective : collectives) {
      for (const Access& access : collective.accesses) {
        operands.push_back({.tensor = access.tensor.unsafeGetTensorImpl(),
                            .is_written = access.isWritten(),
                            .is_updated = access.use == Access::Use::Updated});
      }
    }
  };
  const c10::openreg::Verdict verdict =
      c10::openreg::observeAccesses(stream, kernelNameOf(kind), gather);
  c10::openreg::observe(&c10::openreg::Observer::kernelLaunch, kernelNameOf(kind));
  return verdict;
}

}  // namespace

void checkDevice(const Request& request, c10::Device device) {
  for (const Collective& collective : request.collectives) {
    TORCH_CHECK_VALUE(collective.accesses.empty() || collective.device == device,
                      nameOf(collective.signature.kind), ": expected tensors on one device, got ",
                      device, " and ", collective.device);
  }
}

Engine::Engine(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport,
               std::shared_ptr<IssueOrder> order, c10::Device device, int priority)
    : state_(std::move(state)),
      transport_(std::move(transport)),
      order_(std::move(order)),
      device_(device),
      priority_(priority),
      stream_(GroupStreams::instance().take(device, priority)) {}

Engine::~Engine() {
  // A stream in an error state would skip the work of the next group.
  if (state_->hasFailed()) {
    return;
  }
  GroupStreams::instance().giveBack(stream_, priority_);
  for (const auto& message_stream : message_streams_) {
    GroupStreams::instance().giveBack(message_stream->stream, priority_);
  }
}

void LastWork::block(const OpenRegStream& other, uint64_t capture_of_other) const {
  if (event == nullptr || capture != capture_of_other || *stream == other.unwrap()) {
    return;
  }
  // Calls the runtime directly: programs may not rely on this wait, so observers must not see it.
  OPENREG_CHECK(orStreamWaitEvent(other.stream(), static_cast<orEvent_t>(event->eventId()), 0));
}

bool LastWork::isOver() const {
  if (event == nullptr || capture != 0) {
    return true;
  }
  // The result only selects a stream, so it is allowed during a capture.
  const RelaxedCaptureGuard relaxed;
  try {
    return event->query();
  } catch (const c10::Error&) {
    return true;
  }
}

Engine::MessageStream& Engine::idleMessageStream() {
  for (const auto& one : message_streams_) {
    if (!one->stream.isCapturing() && one->last.isOver()) {
      return *one;
    }
  }
  message_streams_.push_back(std::make_unique<MessageStream>(
      MessageStream{GroupStreams::instance().take(device_, priority_), {}}));
  return *message_streams_.back();
}

bool Engine::query() {
  const LockWithoutGil lock(order_->mutex);
  bool is_over = order_->last.isOver();
  for (const auto& one : message_streams_) {
    is_over = one->last.isOver() && is_over;
  }
  return is_over;
}

std::vector<OpenRegStream> Engine::streams() {
  const LockWithoutGil lock(order_->mutex);
  std::vector<OpenRegStream> streams{stream_};
  for (const auto& one : message_streams_) {
    streams.push_back(one->stream);
  }
  return streams;
}

c10::intrusive_ptr<OcclWork> Engine::enqueue(Request request) {
  const char* name = nameOf(request.kind);
  checkDevice(request, device_);
  const c10::DeviceGuard guard(device_);
  const OpenRegStream current = getCurrentOpenRegStream(device_.index());
  if (request.waits_on_host) {
    checkNotCapturing(current, name);
  }
  const LockWithoutGil lock(order_->mutex);
  state_->checkWorks(name);
  const uint64_t capture = current.captureId();
  MessageStream* const message_stream = request.is_agreed ? nullptr : &idleMessageStream();
  const OpenRegStream stream = message_stream != nullptr ? message_stream->stream
                               : request.is_async        ? stream_
                                                         : current;
  if (stream != current) {
    ready_.record(current.unwrap());
    ready_.block(stream.unwrap());
  }
  if (message_stream == nullptr) {
    order_->last.block(stream, capture);
  }
  for (const ChannelKey& key : request.channels) {
    order_->channels[key].block(stream, capture);
  }
  const bool is_skipped =
      observeCollectives(request.collectives, request.kind, stream) == c10::openreg::Verdict::Skip;
  if (stream != current) {
    recordStreams(request.collectives, stream);
  }
  for (Collective& collective : request.collectives) {
    collective.accesses.clear();
  }
  const uint64_t number = state_->nextNumber();
  // Replays use the timeout without an extension.
  const auto extension = capture == 0 ? state_->takeExtension() : GroupState::Extension{};
  auto completion = std::make_shared<Completion>();
  launchOperation(stream, request.kind,
                  std::make_shared<Operation>(Operation::Setup{
                      state_, transport_, completion, request.kind, request.is_agreed, capture != 0,
                      is_skipped, number, request.timeout + extension.all, extension.owned,
                      std::move(request.collectives)}));
  auto end = std::make_shared<c10::Event>(kDeviceType);
  end->record(stream.unwrap());
  LastWork last{end, stream.unwrap(), capture};
  for (const ChannelKey& key : request.channels) {
    order_->channels[key] = last;
  }
  (message_stream != nullptr ? message_stream->last : order_->last) = std::move(last);
  auto work = c10::make_intrusive<OcclWork>(
      state_->rank(), request.type,
      OcclWork::Setup{state_, std::move(completion), std::move(end), stream.unwrap(), request.kind,
                      number, capture != 0, request.waits_on_host, message_stream != nullptr,
                      std::move(request.outputs)});
  if (request.is_async) {
    work->makeFuture();
  }
  return work;
}

}  // namespace at::openreg
