// Commands: pieces of work, and the ring that a stream queues them in.
//
// Note [Command ring]
// A ring is a block of bytes. A command is stored in it whole: a header of one cache line, then
// its closure. Positions count bytes from the beginning of time; a position modulo the capacity
// is the place. A command that does not fit before the end of the block starts at its beginning,
// behind a skip entry.
//
//   freed_ <= head_ <= tail_ < freed_ + capacity
//     tail_   end of what producers have reserved     under mutex_
//     head_   what the worker takes next              the worker's own
//     freed_  end of what producers may use again     under mutex_
//
// A producer reserves space under mutex_, stores its command with no lock held, and commits it.
// The header at tail_ always exists and says Empty. So the worker needs no lock and no counter
// to find its next command: it looks at the state of the header at head_, and the cache line it
// looks at is the one that brings the command.
//
// The worker passes space back a quarter of the ring at a time, so that it locks rarely and a
// producer that waits for space wakes rarely. That cannot strand a producer: one that waits
// needs less than a quarter of the ring (see the static_assert), so more than three quarters
// have been filled, and the worker passes through them.
//
// When the ring runs empty far from its beginning it restarts there: a lightly loaded stream
// keeps using the same few pages.
#pragma once

#include <openreg/stream.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "base/os.h"

namespace openreg {

namespace trace {
class Span;
}

// About 1,600 launches with a closure of 200 bytes: enough to keep a worker busy while the host
// is away for a millisecond.
constexpr size_t ring_capacity = size_t{512} << 10;

enum class CommandKind : uint8_t {
  Kernel,
  HostFunction,
  Copy,
  Fill,
  Record,
  Wait,     // dropped if the stream has failed
  Follow,   // a wait that is not
  Segment,  // a piece of a graph's launch; see graph_exec.h
  Recover,  // forgets the stream's failure
};

// What a caller hands to a stream.
struct Submission {
  CommandKind kind;
  const char* function;    // the C function that submits
  const orKernel* kernel;  // how to move, run and destroy the closure
  void* closure;
  size_t closure_size;
  // For traces only; see orActivityRecord.
  uint64_t bytes = 0;
  int memcpy_kind = -1;
  int peer_device = -1;
  // The call that submits, if it makes several submissions.
  const trace::Span* call = nullptr;
  // Keeps its place in the order, but its kernel is not called.
  bool is_skipped = false;
  // For captures: the caller waits for it, so it cannot be captured.
  bool is_awaited = false;
  // For captures: takes data of the host's along, which a graph would repeat.
  bool is_staged = false;
  // For captures: what to capture in its place, as `closure` points at something short-lived.
  const Submission* if_captured = nullptr;
};

// Moves the closure of a submission into fresh storage.
void move_closure(const Submission& submission, void* to);

struct Command;

// The closure of CommandKind::Segment begins with it: commands of a graph that run one after
// another, on a device that need not be the stream's.
struct CommandSegment {
  const std::vector<Command*>* commands;
  int device;
};

// An entry of the ring. The closure follows it, or a pointer to the closure if that is large.
struct alignas(os::cache_line_size) Command {
  // Empty until it is committed.
  enum class State : uint32_t { Empty, Ready, Skip };

  // Stores what the submission tells, except its closure.
  void describe(const Submission& submission);

  // What the command, and its kernel, tell to a trace, with the present time as its start. For a
  // traced one: tracing was on when it was submitted. Made before the command runs, as its closure
  // and name may not outlive it.
  orActivityRecord activity(int device, uint64_t stream_id);

  void* inline_closure() { return this + 1; }
  void* closure() { return is_large ? *static_cast<void**>(inline_closure()) : inline_closure(); }
  // Of an entry that is counted: how much memory it has outside the ring. Behind the closure.
  uint64_t& counted_bytes() {
    return *reinterpret_cast<uint64_t*>(reinterpret_cast<std::byte*>(this) + entry_size -
                                        sizeof(uint64_t));
  }
  const char* name() const { return kind == CommandKind::Kernel ? kernel->name : function; }

  std::atomic<State> state{State::Empty};
  uint32_t entry_size;  // header, closure and padding
  const orKernel* kernel;
  const char* function;
  uint64_t correlation_id;  // 0: submitted while tracing was off; the next three are not set
  uint64_t external_id;
  int64_t submit_ns;
  uint64_t bytes;
  CommandKind kind;
  bool is_large;
  bool has_external_id;
  bool is_scheduled;  // it waits for its turn: see turns.h
  int8_t memcpy_kind;
  int8_t peer_device;
  bool is_counted;  // it has counted_bytes()
  bool is_skipped;  // its kernel is not called
};

static_assert(sizeof(Command) == os::cache_line_size);
static_assert(os::cache_line_size % OPENREG_CLOSURE_ALIGNMENT == 0);

// A command outside any ring, with its closure: a node of a graph.
class CapturedCommand {
 public:
  // Takes the closure out of the submission.
  explicit CapturedCommand(const Submission& submission);
  CapturedCommand(CapturedCommand&& other) noexcept
      : command_(std::exchange(other.command_, nullptr)) {}
  CapturedCommand& operator=(CapturedCommand&&) = delete;
  ~CapturedCommand();

  // Puts the closure back where it came from and forgets the command.
  void give_back(const Submission& submission);

  Command& operator*() const { return *command_; }
  Command* operator->() const { return command_; }

 private:
  void free_memory();

  Command* command_;
};

class CommandRing {
 public:
  enum class Status { Granted, Full, Closed, Stopped };

  struct Slot {
    Command* command = nullptr;
    uint64_t sequence = 0;  // the command's number in the stream, from 1
    bool wakes_worker = false;
  };

  // Takes memory from the system; called once, before the first reserve().
  orError_t allocate();

  // Producers: reserves an entry, whose members from `kernel` on are for the caller to set. It has
  // `counted_bytes` of memory outside the ring; see Note [Bounded queues] in openreg/stream.h.
  // Waits while the ring is full if it may, else returns Full.
  Status reserve(size_t closure_size, size_t counted_bytes, bool may_wait, Slot* slot);

  // Producers: hands a reserved entry to the worker.
  void commit(const Slot& slot);

  // How many entries were ever reserved.
  uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }

  // Worker: waits for the next command and returns it, in order. Null when there will be none.
  Command* next();

  // Worker: gives back the space of the command that next() returned last.
  void pop(Command* command);

  // Worker: says that an entry has given its counted bytes back.
  void uncount(size_t bytes);

  // Worker: gives the memory back, after next() returned null.
  void free();

  // Worker: says what to call when no command has come for a while; null for nothing.
  void set_idle_function(void (*function)()) { idle_function_ = function; }

  // Takes no more commands; the worker gets those already there.
  void close();

  // Gives no more commands to the worker, takes none, and ends all waits.
  void stop();

  bool is_closed() const;

 private:
  Command* at(uint64_t position) const;
  bool may_count(size_t bytes) const OPENREG_REQUIRES(mutex_);
  bool wait_for_entry();
  bool sleep_until_entry();
  void restart_if_empty();
  void end(bool CommandRing::* how);

  // What producers use, in cache lines that the worker stays away from while it is awake.
  alignas(os::cache_line_size) mutable Mutex mutex_;
  uint64_t tail_ OPENREG_GUARDED_BY(mutex_) = 0;
  uint64_t freed_ OPENREG_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> submitted_{0};  // changed under mutex_, read by anyone at any time
  size_t counted_bytes_ OPENREG_GUARDED_BY(mutex_) = 0;
  int space_waiters_ OPENREG_GUARDED_BY(mutex_) = 0;
  bool is_worker_asleep_ OPENREG_GUARDED_BY(mutex_) = false;
  bool is_closed_ OPENREG_GUARDED_BY(mutex_) = false;
  bool is_stopped_ OPENREG_GUARDED_BY(mutex_) = false;
  std::condition_variable worker_wakes_;
  std::condition_variable space_appears_;

  alignas(os::cache_line_size) std::byte* memory_ = nullptr;

  // The worker's own.
  alignas(os::cache_line_size) uint64_t head_ = 0;
  uint64_t passed_back_ = 0;  // freed_, as the worker left it
  void (*idle_function_)() = nullptr;
};

}  // namespace openreg
