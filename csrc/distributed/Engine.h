// The operations of a group on the streams of one device.
//
// Note [Order of collectives]
// Collectives of a group run one after the other, in the order in which the host has issued them,
// whatever their streams and devices are: those that the caller does not wait for on a stream of
// the group, the others on the current stream, each behind the one before. So ranks that issue the
// same collectives meet in them, and need not know which devices the others use. Messages between
// two ranks keep their order by sender, receiver and tag alone; each runs on a stream of its own
// while it waits for its peer.
//
// Note [Collectives in graphs]
// A captured collective runs with each replay, in the place of the replay in its stream. Order
// between collectives is kept within a capture and outside of captures, not between the two: there
// the program orders, by streams, as it has to for the tensors.
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
#include "csrc/distributed/Collectives.h"
#include "csrc/distributed/OcclWork.h"
#include "csrc/distributed/Operation.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {

// The other rank (-1: any), whether it is sent, the tag.
using ChannelKey = std::tuple<int, bool, int>;

// An operation as the caller wants it.
struct Request {
  CollectiveKind kind;
  c10d::OpType type;
  bool is_agreed = true;
  bool is_async = true;
  bool waits_on_host = false;
  std::chrono::milliseconds timeout{};
  std::vector<Part> parts{};
  std::vector<Tensor> outputs{};
  std::vector<ChannelKey> channels{};  // of messages
  // As the caller has given them, for profilers.
  std::vector<int64_t> input_splits{};
  std::vector<int64_t> output_splits{};
};

// Errors: ValueError if a tensor of the request is not on the device, the only one whose streams
// the operation is ordered with.
void checkDevice(const Request& request, c10::Device device);

// The end of the last operation that later ones come behind.
struct Tail {
  std::shared_ptr<c10::Event> event;
  std::optional<c10::Stream> stream;
  uint64_t capture = 0;

  // Makes work on a stream that is in a capture, 0 for none, come behind it.
  void block(const c10::openreg::OpenRegStream& other, uint64_t capture_of_other) const;
  bool isOver() const;
};

// Of a group, on all devices. Operations are enqueued with the mutex held.
struct IssueOrder {
  c10::openreg::Mutex mutex;
  Tail last OPENREG_GUARDED_BY(mutex);
  std::map<ChannelKey, Tail> channels OPENREG_GUARDED_BY(mutex);
};

class Engine {
 public:
  Engine(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport,
         std::shared_ptr<IssueOrder> order, c10::Device device, int priority);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Enqueues an operation.
  // Capture: allowed, but for operations that the host waits for.
  // Errors: ValueError if a tensor is on another device; DistBackendError if the group has failed;
  // those of a launch.
  c10::intrusive_ptr<OcclWork> enqueue(Request request) OPENREG_EXCLUDES(order_->mutex);

  // Whether all operations so far are over. Asks their events, which lets them run under a schedule
  // that waits for that.
  bool query() OPENREG_EXCLUDES(order_->mutex);

  c10::Device device() const { return device_; }

  // The one of asynchronous collectives, then those of messages so far.
  std::vector<c10::openreg::OpenRegStream> streams() OPENREG_EXCLUDES(order_->mutex);

 private:
  struct MessageStream {
    c10::openreg::OpenRegStream stream;
    Tail last;
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
