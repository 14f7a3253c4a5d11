// Streams: the host's side. worker.h has the worker's.
//
// Lock order: a capture's mutex (capture.h), a stream's, then its ring's; a timeline's is a leaf.
// None is held while a thread waits for a stream or runs a closure's functions.
#pragma once

#include <openreg/stream.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/mutex.h"
#include "base/os.h"
#include "queue/command.h"
#include "queue/timeline.h"
#include "queue/turns.h"

namespace openreg {

class CaptureTarget;
class Device;

// Made once per handle and never destroyed: work, completions and schedules refer to it, and its
// handle says that it is destroyed.
class Stream {
 public:
  Stream(Device& device, uint64_t id, unsigned flags, int priority);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  uint64_t id() const { return id_; }
  orStream_t handle() const { return handle_; }

  // Such as "stream 1 of device 0", for error texts.
  std::string name() const;

  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }

  // --- Submitting

  // Enqueues a command, or hands it to the stream's capture. Stores its number, 0 if it was not
  // queued. While the process exits it drops the command, leaks its closure and succeeds.
  orError_t submit(const Submission& submission, uint64_t* sequence);

  // Does the same and, with OPENREG_LAUNCH_BLOCKING, finish().
  orError_t launch(const Submission& submission);

  // Does the same and always finish(). Fails if the command is dropped, or the calling thread is
  // the stream's worker.
  orError_t launch_and_finish(Submission submission);

  // --- Waiting

  uint64_t submitted() const { return ring_.submitted(); }
  uint64_t retired() const { return timeline_.retired(); }
  bool is_idle() const;

  // Waits until that many commands retired. Fails with orErrorNotPermitted on the stream's own
  // worker, and if the process exits.
  orError_t wait(uint64_t count);

  // With a schedule, lets the work up to that number run, for somebody who asks whether it has; see
  // openreg/schedule.h. The caller goes on without it.
  void let_run(uint64_t count) {
    if (turns::is_on()) turns::order->let_run(*this, count, true);
  }

  // Waits, then returns the stream's failure and clears it.
  orError_t finish(uint64_t count);

  // --- Failing

  // Keeps the failure, unless the stream has one. A sticky one replaces one that is not.
  void set_failure(FailureRef failure);

  // True if there is a failure. What the worker asks before each command.
  bool has_failure() const { return has_failure_.load(std::memory_order_relaxed); }

  FailureRef failure() const;

  // Returns the failure and clears it, unless it is sticky.
  FailureRef take_failure();

  // Fails with the stream's failure if that is sticky.
  orError_t check_sticky() const;

  // --- Ending

  // Takes no more commands; those submitted still run. Returns false if it is capturing or has been
  // destroyed.
  bool destroy();

  bool is_destroyed() const { return is_destroyed_.load(std::memory_order_relaxed); }

  // True if it is destroyed and has neither work nor a failure left.
  bool has_ended() const;

  // See Note [Exit] in process.h: stop() makes the worker park soon, is_running() tells whether
  // it runs a command, end_waits() is for when it did not park in time.
  void stop() { ring_.stop(); }
  bool is_running() const { return is_running_.load(); }
  void end_waits() { timeline_.stop(); }

  // --- Schedules; see turns.h

  StreamTurns& turns() { return turns_; }
  const StreamTurns& turns() const { return turns_; }

  // --- Capturing; see capture_target.h

  bool is_capturing() const { return is_capturing_.load(std::memory_order_acquire); }

  // The capture that the stream is in, null if none.
  std::shared_ptr<CaptureTarget> capture() const;

  // Puts the stream into a capture. Returns false if it is in one or has been destroyed: a capture
  // of a destroyed stream could not be ended.
  bool join(std::shared_ptr<CaptureTarget> capture);

  // Takes it out again.
  void leave_capture();

 private:
  friend class Worker;
  friend Stream* make_stream(Device& device, uint64_t id, unsigned flags, int priority);

  orError_t start();
  CommandRing::Status reserve(size_t closure_size, size_t counted_bytes, bool is_scheduled,
                              CommandRing::Slot* slot);

  Device& device_;
  const uint64_t id_;
  const unsigned flags_;
  const int priority_;
  orStream_t handle_ = nullptr;  // set before another thread may see the stream
  std::atomic<bool> is_started_{false};
  std::atomic<bool> is_destroyed_{false};

  mutable Mutex mutex_;  // also of starting
  std::shared_ptr<CaptureTarget> capture_ OPENREG_GUARDED_BY(mutex_);
  std::atomic<bool> is_capturing_{false};  // capture_ != nullptr; read at any time
  FailureRef failure_ OPENREG_GUARDED_BY(mutex_);
  std::atomic<bool> has_failure_{false};  // failure_ != nullptr; read by the worker at any time

  // In a cache line of its own: the worker changes it for each command.
  alignas(os::cache_line_size) std::atomic<bool> is_running_{false};

  CommandRing ring_;
  Timeline timeline_;
  StreamTurns turns_;
};

// Makes a stream for a device and registers its handle.
Stream* make_stream(Device& device, uint64_t id, unsigned flags, int priority);

// What a function returns for a stream that has been destroyed.
orError_t fail_destroyed(const Stream& stream);

// Finds the stream that a handle stands for. Fails in a forked child and for a destroyed stream.
orError_t find_stream(orStream_t handle, Stream** stream);

}  // namespace openreg
