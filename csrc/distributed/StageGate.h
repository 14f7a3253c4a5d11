// Holds operations at a stage, for tests of what other ranks do while this one is late. StreamGate
// holds streams between operations.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <string>

#include "csrc/core/Mutex.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// In the order in which an operation comes to them. Messages come to Posted, Heard and Finished.
enum class Stage : int {
  Announced,  // its header has been sent to all ranks
  Heard,      // the header of another rank has come, and nothing has been done about it yet
  Agreed,     // all headers fit
  Posted,     // Gloo has the calls that move the data
  Finished,   // the results are there, and the operation is not over
};

// Threads: any thread may call any function. One stage at a time is closed, for the process.
class OPENREG_EXPORT StageGate {
 public:
  static StageGate& instance();

  // Errors: ValueError if no stage has the name, such as "heard".
  void close(const std::string& stage) OPENREG_EXCLUDES(mutex_);
  void open() OPENREG_EXCLUDES(mutex_);
  // False if no operation has come to it within the time.
  bool waitUntilReached(std::chrono::milliseconds timeout) OPENREG_EXCLUDES(mutex_);

  // Called by operations. Waits while the stage is closed.
  void pass(Stage stage) {
    if (closed_.load(std::memory_order_relaxed) == static_cast<int>(stage)) {
      hold(stage);
    }
  }

 private:
  static constexpr int kNone = -1;

  void hold(Stage stage) OPENREG_EXCLUDES(mutex_);

  std::atomic<int> closed_{kNone};  // changed with the mutex
  c10::openreg::Mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ OPENREG_GUARDED_BY(mutex_) = false;
};

}  // namespace at::openreg
