#include "graph/capture.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/mutex.h"
#include "base/process.h"
#include "queue/device.h"
#include "queue/stream.h"

namespace openreg {
namespace {

std::atomic<uint64_t> last_capture_id{0};
std::atomic<uint64_t> last_thread{0};

// A number of the calling thread that no other thread ever has.
uint64_t this_thread() {
  static thread_local const uint64_t number = last_thread.fetch_add(1) + 1;
  return number;
}

bool is_mode(int mode) {
  return mode >= orStreamCaptureModeGlobal && mode <= orStreamCaptureModeRelaxed;
}

const char* name_of(orStreamCaptureMode mode) {
  switch (mode) {
    case orStreamCaptureModeGlobal:
      return "global";
    case orStreamCaptureModeThreadLocal:
      return "thread local";
    default:
      return "relaxed";
  }
}

// What follows both; see Note [Frontiers].
Frontier merged(const Frontier& one, const Frontier& other, const std::vector<GraphNode>& nodes) {
  Frontier both;
  both.nodes.reserve(one.nodes.size() + other.nodes.size());
  // A node of both is taken from the first.
  auto next = other.nodes.begin();
  for (const size_t node : one.nodes) {
    for (; next != other.nodes.end() && *next < node; ++next) {
      if (!one.covers(*next, nodes[*next].lane)) both.nodes.push_back(*next);
    }
    const bool is_of_both = next != other.nodes.end() && *next == node;
    if (is_of_both) ++next;
    if (is_of_both || !other.covers(node, nodes[node].lane)) both.nodes.push_back(node);
  }
  for (; next != other.nodes.end(); ++next) {
    if (!one.covers(*next, nodes[*next].lane)) both.nodes.push_back(*next);
  }
  both.reach = one.reach;
  both.reach.resize(std::max(one.reach.size(), other.reach.size()));
  for (size_t lane = 0; lane < other.reach.size(); ++lane) {
    both.reach[lane] = std::max(both.reach[lane], other.reach[lane]);
  }
  return both;
}

// The first node that the end does not cover, null if there is none.
const GraphNode* find_unjoined(const Graph& graph, const Frontier& end) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!end.covers(i, graph.nodes[i].lane)) return &graph.nodes[i];
  }
  return nullptr;
}

// Why a command cannot become a node, null if it can.
const char* find_obstacle(const Submission& submission) {
  if (submission.is_staged) {
    return "expected pinned host memory, as a graph copies on each launch, got memory that is not";
  }
  switch (submission.kind) {
    case CommandKind::Kernel:
    case CommandKind::HostFunction:
    case CommandKind::Copy:
    case CommandKind::Fill:
      return nullptr;
    default:  // the capture began after the caller had looked
      return "expected a stream on which no other thread begins a capture at the same time";
  }
}

// What an event recorded in a capturing stream refers to: the nodes that precede it.
class Point final : public CapturePoint {
 public:
  Point(std::shared_ptr<Capture> capture, Frontier frontier)
      : capture_(std::move(capture)), frontier_(std::move(frontier)) {}

  orError_t precede(Stream& stream) const override {
    const std::shared_ptr<Capture> own = capture_of(stream);
    if (own == nullptr || own == capture_) return capture_->follow(stream, frontier_);
    const bool is_outside = capture_->has_ended();
    const std::string reason = concat(
        "orStreamWaitEvent: expected an event of ", own->description(), ", got one recorded in ",
        capture_->description(), is_outside ? ", which has ended" : "");
    capture_->invalidate(reason);
    return own->refuse(is_outside ? orErrorStreamCaptureIsolation : orErrorStreamCaptureMerge,
                       reason);
  }

  orError_t refuse(const char* function) const override {
    return capture_->refuse(orErrorCapturedEvent, concat(function, ": the event was recorded in ",
                                                         capture_->description()));
  }

 private:
  const std::shared_ptr<Capture> capture_;
  const Frontier frontier_;
};

}  // namespace

orError_t Capture::begin(Stream& origin, orStreamCaptureMode mode) {
  const auto capture = std::make_shared<Capture>(origin, mode);
  add_capture(capture);
  if (origin.join(capture)) return orSuccess;
  remove_capture(capture);
  if (origin.is_destroyed()) return fail_destroyed(origin);  // by another thread
  return fail(
      orErrorIllegalState,
      concat("orStreamBeginCapture: expected a stream that is not capturing, got ", origin.name()));
}

Capture::Capture(Stream& origin, orStreamCaptureMode mode)
    : id_(last_capture_id.fetch_add(1) + 1),
      origin_(origin),
      mode_(mode),
      thread_(this_thread()),
      members_{{&origin, {}}},
      graph_(std::make_shared<Graph>()) {}

orError_t Capture::end(Stream& stream, std::shared_ptr<Graph>* graph) {
  const std::shared_ptr<Capture> self = shared_from_this();  // its streams let go of it
  std::shared_ptr<Graph> captured;
  std::vector<Member> members;
  orError_t error = orSuccess;
  {
    const Lock lock(mutex_);
    if (mode_ != orStreamCaptureModeRelaxed && thread_ != this_thread()) {
      return fail(orErrorStreamCaptureWrongThread,
                  concat("orStreamEndCapture: expected the thread that began ", description()));
    }
    if (state_ == State::Ended) {
      return fail(orErrorIllegalState,
                  concat("orStreamEndCapture: ", description(), ", has ended already"));
    }
    if (&stream != &origin_) {
      if (state_ == State::Invalidated) return fail_invalidated("orStreamEndCapture");
      state_ = State::Invalidated;
      reason_ = concat("orStreamEndCapture: expected ", origin_.name(),
                       ", where the capture began, got ", stream.name());
      return fail(orErrorStreamCaptureUnmatched, reason_);
    }
    error = check_end();
    state_ = State::Ended;
    captured = std::move(graph_);
    captured->lane_count = members_.size();
    captured->end = std::move(members_.front().frontier.nodes);
    members = std::move(members_);
  }
  for (const Member& member : members) member.stream->leave_capture();
  remove_capture(self);
  if (error == orSuccess) *graph = std::move(captured);
  return error;
}

orError_t Capture::check_end() const {
  if (state_ == State::Invalidated) return fail_invalidated("orStreamEndCapture");
  const GraphNode* unjoined = find_unjoined(*graph_, members_.front().frontier);
  if (unjoined == nullptr) return orSuccess;
  return fail(orErrorStreamCaptureUnjoined,
              concat("orStreamEndCapture: expected ", origin_.name(),
                     " to wait for all captured work, got none for '", (*unjoined->command).name(),
                     "' on stream ", unjoined->stream_id, " of device ", unjoined->device));
}

// docs: capture-take
orError_t Capture::take(Stream& stream, const Submission& submission, bool* has_ended) {
  if (const char* obstacle = find_obstacle(submission)) {
    return refuse(orErrorStreamCaptureUnsupported, concat(submission.function, ": ", obstacle));
  }
  const Submission& taken =
      submission.if_captured == nullptr ? submission : *submission.if_captured;
  CapturedCommand command(taken);
  orError_t error = orSuccess;
  try {
    const Lock lock(mutex_);
    Member* member = find(stream);
    if (state_ == State::Active && member != nullptr) {
      std::vector<GraphNode>& nodes = graph_->nodes;
      const auto lane = static_cast<size_t>(member - members_.data());
      Frontier& frontier = member->frontier;
      std::vector<size_t> dependencies{nodes.size()};
      if (frontier.reach.size() <= lane) frontier.reach.resize(lane + 1);
      if (nodes.size() == nodes.capacity()) nodes.reserve(2 * nodes.size() + 1);
      // From here on nothing throws.
      std::swap(frontier.nodes, dependencies);
      frontier.reach[lane] = nodes.size() + 1;
      nodes.push_back({.command = std::move(command),
                       .lane = lane,
                       .stream_id = stream.id(),
                       .device = stream.device().index(),
                       .dependencies = std::move(dependencies)});
      return orSuccess;
    }
    *has_ended = state_ == State::Ended || member == nullptr;
    if (!*has_ended) error = fail_invalidated(taken.function);
  } catch (const std::bad_alloc&) {
    command.give_back(taken);
    throw;
  }
  command.give_back(taken);
  return error;
}
// docs: end

orError_t Capture::mark(Stream& stream, std::shared_ptr<const CapturePoint>* point,
                        bool* has_ended) {
  const Lock lock(mutex_);
  const Member* member = find(stream);
  *has_ended = member == nullptr;
  if (*has_ended) return orSuccess;
  if (state_ == State::Invalidated) return fail_invalidated("orEventRecord");
  *point = std::make_shared<Point>(shared_from_this(), member->frontier);
  return orSuccess;
}

orError_t Capture::follow(Stream& stream, const Frontier& frontier) {
  const Lock lock(mutex_);
  if (state_ == State::Invalidated) return fail_invalidated("orStreamWaitEvent");
  if (state_ == State::Ended) {
    return fail(orErrorCapturedEvent, concat("orStreamWaitEvent: the event was recorded in ",
                                             description(), ", which has ended"));
  }
  if (Member* member = find(stream)) {
    member->frontier = merged(member->frontier, frontier, graph_->nodes);
    return orSuccess;
  }
  members_.push_back({&stream, frontier});
  if (stream.join(shared_from_this())) return orSuccess;
  members_.pop_back();
  if (stream.is_destroyed()) return fail_destroyed(stream);  // by another thread
  return fail(orErrorStreamCaptureMerge,
              concat("orStreamWaitEvent: another thread began a capture on ", stream.name()));
}

void Capture::invalidate(const std::string& reason) {
  const Lock lock(mutex_);
  if (state_ != State::Active) return;
  state_ = State::Invalidated;
  reason_ = reason;
}

bool Capture::has_ended() const {
  const Lock lock(mutex_);
  return state_ == State::Ended;
}

bool Capture::has_stream_on(int device) const {
  const Lock lock(mutex_);
  return std::any_of(members_.begin(), members_.end(), [device](const Member& member) {
    return member.stream->device().index() == device;
  });
}

orStreamCaptureStatus Capture::status() const {
  const Lock lock(mutex_);
  switch (state_) {
    case State::Active:
      return orStreamCaptureStatusActive;
    case State::Invalidated:
      return orStreamCaptureStatusInvalidated;
    default:
      return orStreamCaptureStatusNone;
  }
}

bool Capture::forbids_unsafe_calls(orStreamCaptureMode thread_mode) const {
  if (mode_ == orStreamCaptureModeRelaxed || thread_mode == orStreamCaptureModeRelaxed) {
    return false;
  }
  const bool is_everywhere =
      mode_ == orStreamCaptureModeGlobal && thread_mode == orStreamCaptureModeGlobal;
  return is_everywhere || thread_ == this_thread();
}

std::string Capture::description() const {
  return concat("capture ", id_, ", begun on ", origin_.name(), " in mode ", name_of(mode_));
}

Capture::Member* Capture::find(const Stream& stream) {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.stream == &stream; });
  return found == members_.end() ? nullptr : &*found;
}

orError_t Capture::fail_invalidated(const char* function) const {
  return fail(orErrorStreamCaptureInvalidated,
              concat(function, ": ", description(), ", was invalidated: ", reason_));
}

std::shared_ptr<Capture> capture_of(const Stream& stream) {
  return std::static_pointer_cast<Capture>(stream.capture());
}

namespace {

orError_t get_capture_info(orStream_t handle, orStreamCaptureStatus* status, unsigned long long* id,
                           const char* function) {
  if (status == nullptr) return fail(orErrorInvalidValue, concat(function, ": status is null"));
  Stream* stream = nullptr;
  if (const orError_t error = find_stream(handle, &stream)) return error;
  const std::shared_ptr<Capture> capture = capture_of(*stream);
  *status = capture == nullptr ? orStreamCaptureStatusNone : capture->status();
  if (id != nullptr && *status != orStreamCaptureStatusNone) *id = capture->id();
  return orSuccess;
}

}  // namespace
}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orStreamBeginCapture(orStream_t handle, orStreamCaptureMode mode) {
  return guarded([&] {
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    if (!is_mode(mode)) {
      return fail(orErrorInvalidValue, concat("orStreamBeginCapture: expected a mode from 0 to 2, "
                                              "got ",
                                              static_cast<int>(mode)));
    }
    return Capture::begin(*stream, mode);
  });
}

orError_t orStreamEndCapture(orStream_t handle, orGraph_t* graph) {
  return guarded([&] {
    if (graph == nullptr) return fail(orErrorInvalidValue, "orStreamEndCapture: graph is null");
    Stream* stream = nullptr;
    if (const orError_t error = find_stream(handle, &stream)) return error;
    const std::shared_ptr<Capture> capture = capture_of(*stream);
    if (capture == nullptr) {
      return fail(orErrorIllegalState,
                  concat("orStreamEndCapture: ", stream->name(), " is not capturing"));
    }
    std::shared_ptr<Graph> captured;
    if (const orError_t error = capture->end(*stream, &captured)) return error;
    *graph = add_graph(std::move(captured));
    return orSuccess;
  });
}

orError_t orStreamIsCapturing(orStream_t stream, orStreamCaptureStatus* status) {
  return guarded([&] { return get_capture_info(stream, status, nullptr, "orStreamIsCapturing"); });
}

orError_t orStreamGetCaptureInfo(orStream_t stream, orStreamCaptureStatus* status,
                                 unsigned long long* id) {
  return guarded([&] { return get_capture_info(stream, status, id, "orStreamGetCaptureInfo"); });
}

orError_t orThreadExchangeStreamCaptureMode(orStreamCaptureMode* mode) {
  return guarded([&] {
    if (mode == nullptr || !is_mode(*mode)) {
      return fail(orErrorInvalidValue,
                  mode == nullptr
                      ? std::string("orThreadExchangeStreamCaptureMode: mode is null")
                      : concat("orThreadExchangeStreamCaptureMode: expected a mode from 0 to 2, "
                               "got ",
                               static_cast<int>(*mode)));
    }
    std::swap(*mode, this_threads_capture_mode());
    return orSuccess;
  });
}

}  // extern "C"
