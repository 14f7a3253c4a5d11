// How the host is seen to touch pinned memory that a copy uses: the sanitizer's side of the
// runtime's watches (openreg/watch.h).
//
// Note [Frames of a host that faults]
// The thread that touches watched memory runs the handler of the fault, in which nothing may be
// allocated, no lock of Python's taken and no count of references changed: NumPy, for one, gives
// the GIL up in its loops, so the thread may not own it. Python's faulthandler is made for that. It
// walks the frames of the calling thread, which stand still while the thread is in the handler,
// reads their code objects, which the frames own, and writes file, line and function of each as
// text: nothing is left that would have to be kept alive until the report is made. The one way to
// it in all releases of Python is the signal that faulthandler.register() was given. So the handler
// raises that signal, in its own thread, and remembers what has been appended to the file since.
// A thread that Python does not know has no frames.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "csrc/sanitizer/ByteRuns.h"
#include "csrc/sanitizer/Stack.h"
#include "torch_openreg/core/Macros.h"

namespace c10::openreg {

// From now on, `signal` makes Python write the frames of the thread that gets it to `file`, a
// memory file that is nobody else's. Called once, by the bindings; without it touches have no
// frames.
OPENREG_EXPORT void setFrameDumper(int signal, int file);

// Whether memory that is pinned from now on can be watched.
void letHostBeWatched(bool is_watched);

// Pages that the host has opened by touching bytes that no copy uses, since the process began; they
// are watched again from protectOpenedPages() on.
uint64_t countOpenedPages();
void protectOpenedPages();

struct HostTouch {
  uintptr_t address = 0;
  bool is_write = false;
  int thread = 0;      // the operating system's number
  uint64_t order = 0;  // later ones have higher numbers
  uint64_t frames_begin = 0;
  size_t frames_size = 0;

  // Not async-signal-safe. Empty if too many others have been dumped since.
  Stack stack() const;
};

// Of bytes that a stream reads or writes: watches for the host's first access that conflicts.
//
// Not thread-safe, but for what the host does meanwhile.
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

  // Returns whether there is a touch.
  bool end();

  bool isTouched() const { return is_touched_.load(std::memory_order_acquire); }
  const HostTouch& touch() const { return touch_; }

  static bool isAnyAlive() { return alive_.load(std::memory_order_relaxed) > 0; }

  // Whether one has been touched since the last call.
  static bool takeAnyTouched() { return is_any_touched_.exchange(false); }

 private:
  static int see(void* self, const void* address, int is_write);

  static std::atomic<size_t> alive_;
  static std::atomic<bool> is_any_touched_;

  const ByteRuns runs_;
  unsigned long long number_ = 0;
  HostTouch touch_{};
  std::atomic<bool> is_touched_{false};  // then touch_ does not change any more
};

}  // namespace c10::openreg
