#include "csrc/extras/sanitizer/host/HostWatch.h"

#include <openreg/watch.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace c10::openreg {
namespace {

// Dumps are appended to the file up to this size; then the next one overwrites the first.
constexpr uint64_t kFileSize = uint64_t{64} << 20;
// More than Python writes for one thread: 100 frames with two texts each.
constexpr uint64_t kMaxDumpSize = uint64_t{1} << 20;

std::atomic<int> frame_signal{0};
std::atomic<int> frame_file{-1};
std::atomic<uint64_t> frames_end{0};  // keeps increasing when the file wraps around
std::atomic<uint64_t> touch_count{0};

// For calls that can only fail in a forked child, where nothing is watched.
void attempt(orError_t error) {
  if (error != orSuccess) {
    std::ignore = orGetLastError();
  }
}

// Async-signal-safe, and called on one thread at a time, as every orWatchObserver.
void dumpFrames(HostTouch& touch) {
  const int signal = frame_signal.load();
  const int file = frame_file.load();
  if (signal == 0) {
    return;
  }
  uint64_t begin = frames_end.load();
  if (begin % kFileSize + kMaxDumpSize > kFileSize) {
    begin += kFileSize - begin % kFileSize;
  }
  lseek(file, static_cast<off_t>(begin % kFileSize), SEEK_SET);
  sigset_t wanted;
  sigset_t before;
  sigemptyset(&wanted);
  sigaddset(&wanted, signal);
  pthread_sigmask(SIG_UNBLOCK, &wanted, &before);
  raise(signal);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const off_t end = lseek(file, 0, SEEK_CUR);
  touch.frames_begin = begin;
  touch.frames_size = static_cast<size_t>(end) - begin % kFileSize;
  frames_end.store(begin + touch.frames_size);
}

}  // namespace

std::atomic<size_t> HostWatch::alive_{0};
std::atomic<bool> HostWatch::is_any_touched_{false};

void setFrameDumper(int signal, int file) {
  frame_file = file;
  frame_signal = signal;
}

void letHostBeWatched(bool is_watched) { attempt(is_watched ? orWatchStart() : orWatchStop()); }

uint64_t countOpenedPages() {
  orWatchCounts counts{};
  attempt(orWatchGetCounts(&counts));
  return counts.beside;
}

void protectOpenedPages() { attempt(orWatchRearm()); }

Stack HostTouch::stack() const {
  std::string text(frames_size, '\0');
  const ssize_t count = pread(frame_file.load(), text.data(), text.size(),
                              static_cast<off_t>(frames_begin % kFileSize));
  const bool is_overwritten = frames_end.load() > frames_begin + kFileSize;
  if (count != static_cast<ssize_t>(frames_size) || is_overwritten) {
    text.clear();
  }
  Stack stack;
  stack.here = std::make_shared<DumpedFrames>(std::move(text));
  return stack;
}

HostWatch::HostWatch(const ByteRuns& runs, bool is_written) : runs_(runs) {
  alive_.fetch_add(1, std::memory_order_relaxed);
  attempt(orWatchAdd(&number_, reinterpret_cast<const void*>(runs.begin()),
                     runs.end() - runs.begin(), is_written ? 1 : 0, &see, this));
}

bool HostWatch::end() {
  if (const auto number = std::exchange(number_, 0); number != 0) {
    attempt(orWatchRemove(number));
  }
  return isTouched();
}

int HostWatch::see(void* self, const void* address, int is_write) {
  auto* watch = static_cast<HostWatch*>(self);
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (!watch->runs_.contains(at)) {
    return 0;
  }
  HostTouch& touch = watch->touch_;
  touch.address = at;
  touch.is_write = is_write != 0;
  touch.thread = static_cast<int>(syscall(SYS_gettid));
  touch.order = touch_count.fetch_add(1);
  dumpFrames(touch);
  watch->is_touched_.store(true, std::memory_order_release);
  is_any_touched_.store(true);
  return 1;
}

}  // namespace c10::openreg
