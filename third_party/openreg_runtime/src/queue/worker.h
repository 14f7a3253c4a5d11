// Workers: the thread of a stream. It takes the stream's commands one by one, runs or drops them,
// and retires them.
//
// Order of what happens to a command: it runs, its closure is destroyed, its space goes back to
// the ring, it counts as retired. No lock is held while a closure's functions run.
#pragma once

#include "base/error.h"
#include "queue/command.h"

namespace openreg {

class Stream;

class Worker {
 public:
  // Starts the thread of a stream whose ring is allocated.
  static orError_t start(Stream& stream);

  // The stream whose worker the calling thread is, null for other threads.
  static Stream* current_stream();

  // Sets the idle function of the worker that is the calling thread; see orSetIdleFunction.
  static void set_idle_function(void (*function)());

 private:
  explicit Worker(Stream& stream) : stream_(stream) {}

  void run();
  void execute(Command& command);
  bool waits(const Command& command) const;
  void await(Command& command);
  void record(Command& command);
  bool work(Command& command, int device);
  void run_segment(Command& command);
  orError_t call(Command& command);
  void fail_stream(const Command& command, orError_t code);
  [[noreturn]] void park();

  Stream& stream_;
};

}  // namespace openreg
