// Turns: what a stream's commands wait for under a schedule other than "free". See Note [Schedules]
// in openreg/schedule.h.
//
// Note [Turns]
// A command that is submitted while a schedule is on is marked. Its worker runs it after it has
// been granted a turn, and reports when it has retired. Until then no other stream is granted a
// turn, unless the command is of a kind that may wait for the host or another process: then other
// streams may have turns, and its own stream has none until the command has retired.
//
// The choice is made under one lock, by each call that changes something: a submission, a request
// to run work, or the end of a turn. So while no stream has the turn, there is nothing that the
// schedule would run. A host thread returns from each of these calls only then. So between two
// calls of a single host thread, the choice depends only on the calls before.
//
// schedule.cpp makes the choice. Streams and workers call it through what it installs here, so they
// do not depend on it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>

namespace openreg {

struct Command;
class Stream;

// What the schedule knows of a stream; a member of it, under the lock of schedule.cpp.
struct StreamTurns {
  struct Waiting {
    uint64_t ticket;           // its place in the order of all submissions
    const Stream* awaited;     // the stream of the record that it waits for; null: it does not wait
    uint64_t awaited_count;    // what must have retired there
    bool is_dropped_on_error;  // a wait that does not, if the stream has failed
    bool goes_away;            // see Note [Turns]
  };

  std::map<uint64_t, Waiting> waiting;  // by the numbers of commands that have had no turn
  uint64_t granted = 0;                 // the number of the last command that had its turn
  bool is_listed = false;
  bool is_away = false;
  uint64_t drawing = 0;  // the drawing of priorities that gave it its own
  uint64_t priority = 0;
  std::condition_variable is_granted;
};

// What gives the turns.
class TurnOrder {
 public:
  virtual ~TurnOrder() = default;

  // Begins with the setting. Called before the first submission; further calls do nothing.
  virtual void begin() = 0;

  // Reports that a marked command has been committed. If the host is out of memory, the command
  // runs out of turn. Unless the calling thread is a worker, returns when no stream has the turn.
  virtual void add(Stream& stream, uint64_t sequence, Command& command) = 0;

  // Lets the stream run until that many commands have had their turn. Unless the calling thread is
  // a worker, returns when no stream has the turn. A worker that is going to wait gives up its
  // turn.
  virtual void let_run(Stream& stream, uint64_t count, bool is_waiting) = 0;

  // Reports that a host thread has waited for the work that it let run. Returns when no stream has
  // the turn.
  virtual void end_wait() = 0;

  // Worker: waits for the turn of its next command, or forever.
  virtual void take_turn(Stream& stream, uint64_t sequence) = 0;

  // Worker: ends it. The command has retired.
  virtual void end_turn(Stream& stream) = 0;

  // Ends all waits of host threads, as the process exits.
  virtual void stop() = 0;
};

namespace turns {

// That of schedule.cpp, which installs it; null without it.
inline constinit TurnOrder* order = nullptr;

inline constinit std::atomic<bool> is_on_now{false};

// Whether there is a schedule other than "free", so that commands are to be marked. Workers ask
// their commands instead.
inline bool is_on() { return is_on_now.load(std::memory_order_relaxed); }

}  // namespace turns
}  // namespace openreg
