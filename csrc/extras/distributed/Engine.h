// Runs the operations of a group on the streams of one device.
//
// Note [Order of collectives]
// Collectives of a group run one after the other, in the order in which the host issued them, on
// whatever streams and devices they are. Asynchronous collectives run on a stream of the group, the
// others on the current stream; each waits for the one before. So ranks that issue the same
// collectives run them in the same order, whatever devices the other ranks use. Messages between
// two ranks are ordered only by sender, receiver and tag; each uses a stream of its own while it
// waits for its peer.
//
// Note [Collectives in graphs]
// A captured collective runs in each replay, at the replay's position in its stream. Order between
// collectives is kept within a capture, and outside of captures, but not between the two: there the
// program must order them with streams, as it must for the tensors.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/extras/distributed/OcclWork.h"
#include "csrc/extras/distributed/Operation.h"
#include "csrc/extras/distributed/collectives/Collectives.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {

// The other rank (-1: any), whether the message is sent, and the tag.
using ChannelKey = std::tuple<int, bool, int>;

// An operation as the caller requested it.
struct Request {
  CollectiveKind kind;
  c10d::OpType type;
  bool is_agreed = true;
  bool is_async = true;
  bool waits_on_host = false;
  std::chrono::milliseconds timeout{};
  std::vector<Collective> collectives{};
  std::vector<Tensor> outputs{};
  std::vector<ChannelKey> channels{};  // of messages
  // As passed by the caller, for profilers.
  std::vector<int64_t> input_splits{};
  std::vector<int64_t> output_splits{};
};

// Errors: ValueError if a tensor of the request is not on the device. An operation is ordered only
// with the streams of that device.
void checkDevice(const Request& request, c10::Device device);

// The end of the last operation, which later operations wait for.
struct LastWork {
  std::shared_ptr<c10::Event> event;
  std::optional<c10::Stream> stream;
  uint64_t capture = 0;

  // Makes the stream wait for that operation. `capture_of_other` is the id of the stream's capture,
  // 0 for none.
  void block(const c10::openreg::OpenRegStream& other, uint64_t capture_of_other) const;
  bool isOver() const;
};

// The order of a group's operations on all devices. Operations are enqueued with the mutex held.
struct IssueOrder {
  c10::openreg::Mutex mutex;
  LastWork last OPENREG_GUARDED_BY(mutex);
  std::map<ChannelKey, LastWork> channels OPENREG_GUARDED_BY(mutex);
};

class Engine {
 public:
  Engine(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport,
         std::shared_ptr<IssueOrder> order, c10::Device device, int priority);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Enqueues an operation.
  // Capture: allowed, except for operations that block the host.
  // Errors: ValueError if a tensor is on another device; DistBackendError if the group has failed;
  // those of a launch.
  c10::intrusive_ptr<OcclWork> enqueue(Request request) OPENREG_EXCLUDES(order_->mutex);

  // Whether all operations so far are complete. Queries their events; under some schedules, streams
  // advance only when they are queried.
  bool query() OPENREG_EXCLUDES(order_->mutex);

  c10::Device device() const { return device_; }

  // The stream of asynchronous collectives, then those used for messages so far.
  std::vector<c10::openreg::OpenRegStream> streams() OPENREG_EXCLUDES(order_->mutex);

 private:
  struct MessageStream {
    c10::openreg::OpenRegStream stream;
    LastWork last;
  };

  MessageStream& idleMessageStream() OPENREG_REQUIRES(order_->mutex);

  const std::shared_ptr<GroupState> state_;
  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<IssueOrder> order_;
  const c10::Device device_;
  const int priority_;
  const c10::openreg::OpenRegStream stream_;
  // Recorded on the caller's stream for each operation on another one.
  c10::Event ready_ OPENREG_GUARDED_BY(order_->mutex){c10::openreg::kDeviceType};
  std::vector<std::unique_ptr<MessageStream>> message_streams_ OPENREG_GUARDED_BY(order_->mutex);
};

}  // namespace at::openreg
