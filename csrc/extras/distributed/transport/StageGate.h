// Holds operations at a stage, for tests of how other ranks behave while this one is late.
// StreamGate holds streams between operations.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <string>

#include "csrc/core/Mutex.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

// In the order in which an operation reaches them. Messages reach Posted, Heard and Finished.
enum class Stage : int {
  Announced,  // its header has been sent to all ranks
  Heard,      // the header of another rank has arrived and is not checked yet
  Agreed,     // all headers fit
  Posted,     // the calls that move the data have been posted to Gloo
  Finished,   // the results are complete, the operation has not ended
};

// Threads: any thread may call any function. At most one stage is closed at a time in a process.
class OPENREG_EXPORT StageGate {
 public:
  static StageGate& instance();

  // Errors: ValueError if the name is not that of a stage, such as "heard".
  void close(const std::string& stage) OPENREG_EXCLUDES(mutex_);
  void open() OPENREG_EXCLUDES(mutex_);
  // Returns false if no operation reaches it within the time.
  bool waitUntilReached(std::chrono::milliseconds timeout) OPENREG_EXCLUDES(mutex_);

  // Operations call it. Waits while the stage is closed.
  void pass(Stage stage) {
    if (closed_.load(std::memory_order_relaxed) == static_cast<int>(stage)) {
      hold(stage);
    }
  }

 private:
  static constexpr int kNone = -1;

  void hold(Stage stage) OPENREG_EXCLUDES(mutex_);

  std::atomic<int> closed_{kNone};  // changed with the mutex held
  c10::openreg::Mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ OPENREG_GUARDED_BY(mutex_) = false;
};

}  // namespace at::openreg
