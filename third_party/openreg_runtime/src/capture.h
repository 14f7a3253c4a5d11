// Captures: streams whose commands become a graph instead of running. See openreg/graph.h.
//
// A capture belongs to its streams, to the events recorded in them, and, while it lasts, to the
// list of captures. What a stream submits next follows the stream's frontier: the last node of
// its own, and what it waited for since.
//
// Note [Frontiers]
// A frontier has no node that another of its nodes follows, so a node of the graph has an edge only
// where no other path says the same. The nodes of one lane follow each other: the latest one of
// each lane that a frontier is or follows, its reach, tells everything that it follows. So a
// frontier has at most one node per lane, and to record it, or to wait for it, takes time in
// proportion to the lanes, however many nodes there are.
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

#include "command.h"
#include "error.h"
#include "graph.h"
#include "mutex.h"

namespace openreg {

class Capture;
class Stream;

// See Note [Frontiers].
struct Frontier {
  // Whether the node is one of these or followed by one.
  bool covers(size_t node, size_t lane) const { return lane < reach.size() && node < reach[lane]; }

  std::vector<size_t> nodes;  // indexes, ascending; none follows another
  std::vector<size_t> reach;  // per lane, one more than its latest node covered; 0 beyond the end
};

// What an event recorded in a capturing stream stands for.
struct CaptureMark {
  std::shared_ptr<Capture> capture;
  Frontier frontier;
};

class Capture : public std::enable_shared_from_this<Capture> {
 public:
  // Puts the stream into a new capture.
  static orError_t begin(Stream& origin, orStreamCaptureMode mode);

  Capture(Stream& origin, orStreamCaptureMode mode);
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Ends the capture, as orStreamEndCapture() of one of its streams.
  orError_t end(Stream& stream, std::shared_ptr<Graph>* graph);

  // Makes a node of a command. On success the closure has been moved out of the submission; on
  // error it has not. If the capture has ended meanwhile it takes nothing and says so.
  orError_t take(Stream& stream, const Submission& submission, bool* has_ended);

  // Stores what an event recorded on the stream stands for, unless the capture has ended.
  orError_t mark(Stream& stream, CaptureMark* mark, bool* has_ended);

  // Makes later commands of the stream follow the frontier, and pulls the stream into the capture.
  orError_t follow(Stream& stream, const Frontier& frontier);

  // Invalidates it, for the reason that fail() would be given. Does nothing if it has ended.
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
  const uint64_t thread_;  // that began it

  mutable Mutex mutex_;
  State state_ OPENREG_GUARDED_BY(mutex_) = State::Active;
  std::string reason_ OPENREG_GUARDED_BY(mutex_);  // what invalidated it
  std::vector<Member> members_ OPENREG_GUARDED_BY(mutex_);
  std::shared_ptr<Graph> graph_ OPENREG_GUARDED_BY(mutex_);
};

// Makes later commands of the stream, capturing or not, follow what the mark stands for.
orError_t wait_for(Stream& stream, const CaptureMark& mark);

// The checks below fail with orErrorStreamCaptureUnsupported and invalidate the captures that
// forbid the call; nothing is invalidated on success.

// Fails if the stream is capturing.
orError_t check_not_capturing(const Stream& stream, const char* function);

// Fails if a capture forbids the calling thread to make unsafe calls.
orError_t check_safe(const char* function);

// Both: for functions that wait for the stream or ask how far it has got.
orError_t check_may_wait(const Stream& stream, const char* function);

// The same for a device: none of its streams may be capturing.
orError_t check_may_wait(int device, const char* function);

// For functions that deal with an event recorded in a capture as if it came to an end.
orError_t fail_captured(const CaptureMark& mark, const char* function);

}  // namespace openreg
