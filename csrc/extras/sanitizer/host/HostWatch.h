// Detects host accesses to pinned memory that a copy uses, by the runtime's watches
// (openreg/watch.h).
//
// Note [Frames of a host that faults]
// A thread that accesses watched memory runs the fault handler, which must not allocate memory,
// acquire a lock of Python or change reference counts. The thread may not even hold the GIL,
// because NumPy, for example, releases it in its loops. Python's faulthandler is made for this
// case. It walks the frames of the calling thread, which do not change while the thread is in the
// handler. It reads their code objects, which the frames own, and writes file, line and function of
// each as text, so no object has to be kept alive until the report is made. The only entry point in
// all releases of Python is the signal passed to faulthandler.register(). So the handler raises
// that signal in its own thread, and records what was appended to the file. A thread that is
// unknown to Python has no frames.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "csrc/core/Stack.h"
#include "csrc/extras/sanitizer/ByteRuns.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// From now on, `signal` makes Python write the frames of the thread that receives it to `file`, a
// memory file for this purpose only. Called once, by the bindings; otherwise touches have no
// frames.
OPENREG_EXPORT void setFrameDumper(int signal, int file);

// Whether memory that is pinned from now on can be watched.
void letHostBeWatched(bool is_watched);

// The number of pages since the process began that were opened by host accesses to bytes that no
// copy uses. protectOpenedPages() watches them again.
uint64_t countOpenedPages();
void protectOpenedPages();

struct HostTouch {
  uintptr_t address = 0;
  bool is_write = false;
  int thread = 0;      // the operating system's number
  uint64_t order = 0;  // increases with each touch
  uint64_t frames_begin = 0;
  size_t frames_size = 0;

  // Not async-signal-safe. Empty if too many other stacks have been dumped since.
  Stack stack() const;
};

// Watches bytes that a stream reads or writes for the host's first conflicting access.
//
// Not thread-safe, except for concurrent host accesses.
class HostWatch {
 public:
  HostWatch(const ByteRuns& runs, bool is_written);
  ~HostWatch() {
    end();
    alive_.fetch_sub(1, std::memory_order_relaxed);
  }
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

  // False if the memory cannot be watched.
  bool isWatching() const { return number_ != 0; }

  // Returns whether a conflicting access happened.
  bool end();

  bool isTouched() const { return is_touched_.load(std::memory_order_acquire); }
  const HostTouch& touch() const { return touch_; }

  static bool isAnyAlive() { return alive_.load(std::memory_order_relaxed) > 0; }

  // Whether any watch has found an access since the last call.
  static bool takeAnyTouched() { return is_any_touched_.exchange(false); }

 private:
  static int see(void* self, const void* address, int is_write);

  static std::atomic<size_t> alive_;
  static std::atomic<bool> is_any_touched_;

  const ByteRuns runs_;
  unsigned long long number_ = 0;
  HostTouch touch_{};
  std::atomic<bool> is_touched_{false};  // touch_ does not change afterwards
};

}  // namespace c10::openreg
