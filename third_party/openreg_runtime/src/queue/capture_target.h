// Capture targets: what a stream submits to instead of its queue, and the calls that must not be
// made meanwhile. See Note [Unsafe calls] in openreg/graph.h.
//
// graph/capture.h implements it, so streams and events do not depend on graphs.
//
// Lock order: the list of targets is a leaf.
#pragma once

#include <openreg/graph.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "queue/command.h"

namespace openreg {

class Stream;

// What an event recorded in a capturing stream refers to: a point of the capture.
class CapturePoint {
 public:
  virtual ~CapturePoint() = default;

  // Makes later commands of the stream, capturing or not, follow it.
  virtual orError_t precede(Stream& stream) const = 0;

  // Fails, for a function that would wait for the event.
  virtual orError_t refuse(const char* function) const = 0;
};

class CaptureTarget {
 public:
  virtual ~CaptureTarget() = default;

  // Makes a node of a command. On success the closure has been moved out of the submission; on
  // error it has not. If the capture has ended meanwhile, does nothing and sets `has_ended`.
  virtual orError_t take(Stream& stream, const Submission& submission, bool* has_ended) = 0;

  // Makes a point that the stream has reached. Stores whether the capture has ended meanwhile; then
  // there is none.
  virtual orError_t mark(Stream& stream, std::shared_ptr<const CapturePoint>* point,
                         bool* has_ended) = 0;

  // Invalidates it, with a reason as for fail(). Does nothing if it has ended.
  virtual void invalidate(const std::string& reason) = 0;

  virtual bool has_stream_on(int device) const = 0;

  // Whether a thread may not make unsafe calls.
  virtual bool forbids_unsafe_calls(orStreamCaptureMode thread_mode) const = 0;

  // "capture 1, begun on stream 2 in mode global"
  virtual std::string description() const = 0;

  // Invalidates it and fails.
  orError_t refuse(orError_t code, const std::string& reason);
};

// The list of targets that last; the checks below go through it.
void add_capture(std::shared_ptr<CaptureTarget> capture);
void remove_capture(const std::shared_ptr<CaptureTarget>& capture);

// The calling thread's mode. See orThreadExchangeStreamCaptureMode.
orStreamCaptureMode& this_threads_capture_mode();

// The checks fail with orErrorStreamCaptureUnsupported and invalidate the captures that forbid the
// call; nothing is invalidated on success.

// Fails if the stream is capturing.
orError_t check_not_capturing(const Stream& stream, const char* function);

// Fails if a capture forbids unsafe calls on the calling thread.
orError_t check_safe(const char* function);

// Both: for functions that wait for the stream or query its progress.
orError_t check_may_wait(const Stream& stream, const char* function);

// The same for a device: none of its streams may be capturing.
orError_t check_may_wait(int device, const char* function);

}  // namespace openreg
