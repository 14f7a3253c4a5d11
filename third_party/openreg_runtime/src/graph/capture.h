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
// Lock order: the list of captures is a leaf; a capture's mutex comes before a stream's. None is
// held while a closure's functions run.
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

// The nodes that precede an event recorded in a capturing stream.
struct CaptureMark {
  std::shared_ptr<Capture> capture;
  Frontier frontier;
};

class Capture : public std::enable_shared_from_this<Capture> {
 public:
  // Begins a capture on the stream.
  static orError_t begin(Stream& origin, orStreamCaptureMode mode);

  Capture(Stream& origin, orStreamCaptureMode mode);
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Ends the capture, as orStreamEndCapture() of one of its streams.
  orError_t end(Stream& stream, std::shared_ptr<Graph>* graph);

  // Makes a node of a command. On success the closure has been moved out of the submission; on
  // error it has not. If the capture has ended meanwhile, does nothing and sets `has_ended`.
  orError_t take(Stream& stream, const Submission& submission, bool* has_ended);

  // Stores the mark of an event recorded on the stream, unless the capture has ended.
  orError_t mark(Stream& stream, CaptureMark* mark, bool* has_ended);

  // Makes later commands of the stream follow the frontier, and adds the stream to the capture.
  orError_t follow(Stream& stream, const Frontier& frontier);

  // Invalidates it, with a reason as for fail(). Does nothing if it has ended.
  void invalidate(const std::string& reason);

  // Invalidates it and fails.
  orError_t refuse(orError_t code, const std::string& reason);

  bool has_ended() const;
  bool has_stream_on(int device) const;
  orStreamCaptureStatus status() const;
  uint64_t id() const { return id_; }

  // Whether a thread may not make unsafe calls; see Note [Unsafe calls] in openreg/graph.h.
  bool forbids_unsafe_calls(orStreamCaptureMode thread_mode) const;

  // "capture 1, begun on stream 2 in mode global"
  std::string description() const;

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

// Makes later commands of the stream, capturing or not, follow the mark.
orError_t wait_for(Stream& stream, const CaptureMark& mark);

// The checks below fail with orErrorStreamCaptureUnsupported and invalidate the captures that
// forbid the call; nothing is invalidated on success.

// Fails if the stream is capturing.
orError_t check_not_capturing(const Stream& stream, const char* function);

// Fails if a capture forbids unsafe calls on the calling thread.
orError_t check_safe(const char* function);

// Both: for functions that wait for the stream or query its progress.
orError_t check_may_wait(const Stream& stream, const char* function);

// The same for a device: none of its streams may be capturing.
orError_t check_may_wait(int device, const char* function);

// For functions that would wait for an event that was recorded in a capture.
orError_t fail_captured(const CaptureMark& mark, const char* function);

}  // namespace openreg
