// Captures: streams whose commands become a graph instead of running. See openreg/graph.h.
//
// A capture belongs to its streams, to the events recorded in them and, while it is active, to the
// list of captures. The next submission of a stream follows the stream's frontier: the last node of
// its own, and the nodes it has waited for since.
//
// Note [Frontiers]
// No node of a frontier is followed by another one, so a node of the graph has only edges that are
// not implied by other paths. The nodes of one lane follow each other. So the latest node of each
// lane that belongs to a frontier or precedes it, its reach, determines all nodes that it covers. A
// frontier therefore has at most one node per lane, and recording it, or waiting for it, takes time
// proportional to the number of lanes, however many nodes there are.
//
// Lock order: a capture's mutex comes before a stream's. Neither is held while a closure's
// functions run.
#pragma once

#include <openreg/graph.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "graph/graph.h"
#include "queue/capture_target.h"
#include "queue/command.h"

namespace openreg {

class Capture;
class Stream;

// See Note [Frontiers].
struct Frontier {
  // Whether the node is one of these or precedes one.
  bool covers(size_t node, size_t lane) const { return lane < reach.size() && node < reach[lane]; }

  std::vector<size_t> nodes;  // indexes, ascending; none follows another
  std::vector<size_t> reach;  // per lane, one more than its latest node covered; 0 beyond the end
};

class Capture final : public CaptureTarget, public std::enable_shared_from_this<Capture> {
 public:
  // Begins a capture on the stream.
  static orError_t begin(Stream& origin, orStreamCaptureMode mode);

  Capture(Stream& origin, orStreamCaptureMode mode);
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Ends the capture, as orStreamEndCapture() of one of its streams.
  orError_t end(Stream& stream, std::shared_ptr<Graph>* graph);

  // Makes later commands of the stream follow the frontier, and adds the stream to the capture.
  orError_t follow(Stream& stream, const Frontier& frontier);

  bool has_ended() const;
  orStreamCaptureStatus status() const;
  uint64_t id() const { return id_; }

  orError_t take(Stream& stream, const Submission& submission, bool* has_ended) override;
  orError_t mark(Stream& stream, std::shared_ptr<const CapturePoint>* point,
                 bool* has_ended) override;
  void invalidate(const std::string& reason) override;
  bool has_stream_on(int device) const override;
  bool forbids_unsafe_calls(orStreamCaptureMode thread_mode) const override;
  std::string description() const override;

 private:
  enum class State : uint8_t { Active, Invalidated, Ended };

  struct Member {
    Stream* stream;
    Frontier frontier;
  };

  Member* find(const Stream& stream) OPENREG_REQUIRES(mutex_);
  orError_t fail_invalidated(const char* function) const OPENREG_REQUIRES(mutex_);
  orError_t check_end() const OPENREG_REQUIRES(mutex_);

  const uint64_t id_;
  Stream& origin_;
  const orStreamCaptureMode mode_;
  const uint64_t thread_;  // the thread that began it

  mutable Mutex mutex_;
  State state_ OPENREG_GUARDED_BY(mutex_) = State::Active;
  std::string reason_ OPENREG_GUARDED_BY(mutex_);  // why it was invalidated
  std::vector<Member> members_ OPENREG_GUARDED_BY(mutex_);
  std::shared_ptr<Graph> graph_ OPENREG_GUARDED_BY(mutex_);
};

// The capture that the stream is in, null if none.
std::shared_ptr<Capture> capture_of(const Stream& stream);

}  // namespace openreg
