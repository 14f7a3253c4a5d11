// Schedules: which stream runs next. See Note [Turns] in turns.h.
//
// Lock order: the lock is a leaf.
#include <openreg/schedule.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/process.h"
#include "base/setting.h"
#include "queue/capture_target.h"
#include "queue/command.h"
#include "queue/completion.h"
#include "queue/device.h"
#include "queue/stream.h"
#include "queue/turns.h"
#include "queue/worker.h"

namespace openreg {
namespace {

std::string text_of(const Schedule& schedule) {
  switch (schedule.kind) {
    case Schedule::Kind::Free:
      return "free";
    case Schedule::Kind::Lazy:
      return "lazy";
    case Schedule::Kind::Eager:
      return "eager";
    default:
      return std::to_string(schedule.seed);
  }
}

// The numbers that follow from a seed: splitmix64.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t number = state_ += 0x9e3779b97f4a7c15u;
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
    number = (number ^ number >> 27) * 0x94d049bb133111ebu;
    return number ^ number >> 31;
  }

 private:
  uint64_t state_;
};

// Who is how important, and when that changes: PCT with two changes. The caller has the lock.
class Priorities {
 public:
  // `drawing` is greater than the number of any drawing before.
  Priorities(uint64_t seed, uint64_t drawing) : numbers_(seed), drawing_(drawing) { draw(); }

  uint64_t drawing() const { return drawing_; }

  // Draws all anew.
  void draw() {
    ++drawing_;
    step_ = 0;
    host_ = draw_one();
    // Streams with a lower priority than the host wait. Most mistakes show when the host has the
    // highest priority of all, so that case has a probability of one half.
    if (numbers_.next() % 2 == 0) host_ |= above_all;
    // Programs are short or long: each power of two is as likely.
    for (uint64_t& change : changes_) {
      const uint64_t power = uint64_t{1} << numbers_.next() % max_change_bits;
      change = power + numbers_.next() % power;
    }
  }

  // The host, or the stream that has the highest priority and is about to run, makes a step. If it
  // falls back by that, a stream does not run after all: the result is false.
  bool step(uint64_t& priority) {
    ++step_;
    bool falls_back = false;
    for (size_t i = 0; i < changes_.size(); ++i) {
      if (changes_[i] != step_) continue;
      priority = changes_.size() - i;
      falls_back = true;
    }
    return !falls_back;
  }

  uint64_t& host() { return host_; }

  uint64_t& of(StreamTurns& turns) {
    if (turns.drawing != drawing_) {
      turns.drawing = drawing_;
      turns.priority = draw_one();
    }
    return turns.priority;
  }

 private:
  static constexpr uint64_t max_change_bits = 9;  // the last step that may be a change: 511

  static constexpr uint64_t above_all = uint64_t{1} << 63;

  // Higher than the priority of each stream whose priority was lowered.
  uint64_t draw_one() { return (numbers_.next() & ~above_all) | uint64_t{1} << 32; }

  Numbers numbers_;
  uint64_t drawing_;
  uint64_t step_ = 0;
  uint64_t host_ = 0;
  std::array<uint64_t, 2> changes_{};
};

bool has_host_function(const CommandSegment& segment) {
  return std::any_of(
      segment.commands->begin(), segment.commands->end(),
      [](const Command* command) { return command->kind == CommandKind::HostFunction; });
}

StreamTurns::Waiting describe(Command& command) {
  StreamTurns::Waiting waiting{};
  switch (command.kind) {
    case CommandKind::HostFunction:
      waiting.goes_away = true;
      break;
    case CommandKind::Segment:
      waiting.goes_away = has_host_function(*static_cast<CommandSegment*>(command.closure()));
      break;
    case CommandKind::Wait:
    case CommandKind::Follow: {
      const CompletionRef& completion = *static_cast<CompletionRef*>(command.closure());
      waiting.awaited = completion->stream();
      waiting.awaited_count = completion->sequence();
      waiting.goes_away = waiting.awaited == nullptr;
      waiting.is_dropped_on_error = command.kind == CommandKind::Wait;
      break;
    }
    default:
      break;
  }
  return waiting;
}

class Scheduler final : public TurnOrder {
 public:
  void begin() override {
    const Schedule& schedule = settings().schedule;
    const Lock lock(mutex_);
    if (!std::exchange(has_begun_, true)) set(schedule);
  }

  Schedule current() {
    const Lock lock(mutex_);
    return schedule_;
  }

  // Returns false if there is work.
  bool change(const Schedule& schedule) {
    Lock lock(mutex_);
    settle(lock);
    if (!is_empty()) return false;
    set(schedule);
    return true;
  }

  void add(Stream& stream, uint64_t sequence, Command& command) override {
    try {
      enter(stream, sequence, describe(command));
    } catch (const std::bad_alloc&) {
      let_go(stream, sequence);
    }
  }

  void let_run(Stream& stream, uint64_t count, bool is_waiting) override {
    Lock lock(mutex_);
    ask(stream, count);
    Stream* const own = Worker::current_stream();
    if (is_waiting && own != nullptr && own == running_) {
      own->turns().is_away = true;
      running_ = nullptr;
    }
    advance();
    settle(lock);
  }

  void end_wait() override {
    Lock lock(mutex_);
    settle(lock);
    if (is_empty() && Worker::current_stream() == nullptr) priorities_.draw();
  }

  void take_turn(Stream& stream, uint64_t sequence) override {
    Lock lock(mutex_);
    StreamTurns& turns = stream.turns();
    while (turns.granted < sequence) lock.wait(turns.is_granted);
  }

  void end_turn(Stream& stream) override {
    const Lock lock(mutex_);
    StreamTurns& turns = stream.turns();
    turns.is_away = false;
    if (running_ == &stream) running_ = nullptr;
    if (turns.waiting.empty()) {
      turns.is_listed = false;
      std::erase(streams_, &stream);
    }
    advance();
  }

  // Clang cannot follow a lock from one function to another.
  void lock() OPENREG_UNCHECKED_LOCKING { mutex_.lock(); }
  void unlock() OPENREG_UNCHECKED_LOCKING { mutex_.unlock(); }

  void stop() override {
    const Lock lock(mutex_);
    is_stopped_ = true;
    is_settled_.notify_all();
  }

 private:
  void enter(Stream& stream, uint64_t sequence, const StreamTurns::Waiting& command) {
    Lock lock(mutex_);
    StreamTurns& turns = stream.turns();
    list(stream);
    turns.waiting.emplace(sequence, command).first->second.ticket = next_ticket_++;
    if (command.goes_away) ask(stream, sequence);
    if (schedule_.kind == Schedule::Kind::Seeded) {
      priorities_.of(turns);
      priorities_.step(priorities_.host());
    }
    advance();
    settle(lock);
  }

  // Lets the work up to that number run without turns: what enter() could not list.
  void let_go(Stream& stream, uint64_t sequence) {
    const Lock lock(mutex_);
    StreamTurns& turns = stream.turns();
    turns.waiting.erase(turns.waiting.begin(), turns.waiting.upper_bound(sequence));
    turns.granted = std::max(turns.granted, sequence);
    turns.is_granted.notify_one();
  }

  void set(const Schedule& schedule) OPENREG_REQUIRES(mutex_) {
    schedule_ = schedule;
    priorities_ = Priorities(schedule.seed, priorities_.drawing());
    turns::is_on_now.store(schedule.kind != Schedule::Kind::Free);
  }

  bool is_empty() const OPENREG_REQUIRES(mutex_) { return streams_.empty(); }

  void list(Stream& stream) OPENREG_REQUIRES(mutex_) {
    if (stream.turns().is_listed) return;
    streams_.push_back(&stream);
    stream.turns().is_listed = true;
  }

  void ask(Stream& stream, uint64_t count) OPENREG_REQUIRES(mutex_) {
    asked_.emplace_back(&stream, count);
  }

  // Grants turns until a stream has one that others have to wait for, or none should run.
  void advance() OPENREG_REQUIRES(mutex_) {
    while (running_ == nullptr) {
      std::erase_if(asked_, [](const auto& one) OPENREG_UNCHECKED_LOCKING {
        return std::max(one.first->turns().granted, one.first->retired()) >= one.second;
      });
      Stream* next = choose();
      if (next == nullptr) break;
      grant(*next);
    }
    if (running_ == nullptr) is_settled_.notify_all();
  }

  void grant(Stream& stream) OPENREG_REQUIRES(mutex_) {
    StreamTurns& turns = stream.turns();
    const auto first = turns.waiting.begin();
    turns.granted = first->first;
    if (first->second.goes_away) {
      turns.is_away = true;
    } else {
      running_ = &stream;
    }
    turns.waiting.erase(first);
    turns.is_granted.notify_one();
  }

  // Waits until no stream has the turn or is about to return to the schedule, unless the calling
  // thread is a worker.
  void settle(Lock& lock) OPENREG_REQUIRES(mutex_) {
    if (Worker::current_stream() != nullptr) return;
    while ((running_ != nullptr || is_coming_back()) && !is_stopped_) lock.wait(is_settled_);
  }

  // Whether what a stream went away for has retired.
  bool is_coming_back() const OPENREG_REQUIRES(mutex_) {
    return std::any_of(streams_.begin(), streams_.end(), [](Stream* stream) {
      const StreamTurns& turns = stream->turns();
      return turns.is_away && stream->retired() >= turns.granted;
    });
  }

  Stream* choose() OPENREG_REQUIRES(mutex_) {
    switch (schedule_.kind) {
      case Schedule::Kind::Lazy:
        return choose_asked();
      case Schedule::Kind::Eager:
        return choose_first();
      case Schedule::Kind::Seeded:
        return choose_highest();
      default:
        return nullptr;
    }
  }

  Stream* choose_asked() OPENREG_REQUIRES(mutex_) {
    for (const auto& [stream, count] : asked_) {
      if (Stream* next = first_towards(*stream)) return next;
    }
    return nullptr;
  }

  // The stream that has to run next so that the given one can continue; null if none can run. The
  // search ends, because a wait is submitted after the record that it waits for.
  Stream* first_towards(Stream& stream) OPENREG_REQUIRES(mutex_) {
    Stream* next = &stream;
    while (!can_run(*next)) {
      const StreamTurns& turns = next->turns();
      if (turns.is_away || turns.waiting.empty() || !is_next(*next)) return nullptr;
      next = const_cast<Stream*>(turns.waiting.begin()->second.awaited);
    }
    return next;
  }

  Stream* choose_first() OPENREG_REQUIRES(mutex_) {
    const auto ticket = [](Stream* stream) OPENREG_UNCHECKED_LOCKING {
      return stream->turns().waiting.begin()->second.ticket;
    };
    Stream* first = nullptr;
    for (Stream* stream : streams_) {
      if (!can_run(*stream)) continue;
      if (first == nullptr || ticket(stream) < ticket(first)) first = stream;
    }
    return first;
  }

  Stream* choose_highest() OPENREG_REQUIRES(mutex_) {
    for (;;) {
      // A host that waits cannot go on. What goes away only has to begin.
      const uint64_t bound = asked_.empty() ? priorities_.host() : 0;
      Stream* highest = nullptr;
      for (Stream* stream : streams_) {
        if (!can_run(*stream) || priorities_.of(stream->turns()) <= bound) continue;
        if (highest == nullptr ||
            priorities_.of(stream->turns()) > priorities_.of(highest->turns())) {
          highest = stream;
        }
      }
      if (highest == nullptr || priorities_.step(priorities_.of(highest->turns()))) return highest;
    }
  }

  // Whether all before the stream's first waiting command has retired.
  bool is_next(const Stream& stream) OPENREG_REQUIRES(mutex_) {
    return stream.turns().waiting.begin()->first == stream.retired() + 1;
  }

  bool can_run(Stream& stream) OPENREG_REQUIRES(mutex_) {
    const StreamTurns& turns = stream.turns();
    if (turns.is_away || turns.waiting.empty() || !is_next(stream)) return false;
    const StreamTurns::Waiting& first = turns.waiting.begin()->second;
    return first.awaited == nullptr || first.awaited->retired() >= first.awaited_count ||
           (first.is_dropped_on_error && stream.has_failure());
  }

  Mutex mutex_;
  std::condition_variable is_settled_;
  Schedule schedule_ OPENREG_GUARDED_BY(mutex_);
  Priorities priorities_ OPENREG_GUARDED_BY(mutex_){0, 0};
  std::vector<Stream*> streams_ OPENREG_GUARDED_BY(mutex_);  // that have work, as they got it
  std::vector<std::pair<Stream*, uint64_t>> asked_ OPENREG_GUARDED_BY(mutex_);
  Stream* running_ OPENREG_GUARDED_BY(mutex_) = nullptr;  // has the turn
  uint64_t next_ticket_ OPENREG_GUARDED_BY(mutex_) = 0;
  bool has_begun_ OPENREG_GUARDED_BY(mutex_) = false;
  bool is_stopped_ OPENREG_GUARDED_BY(mutex_) = false;
};

Scheduler& scheduler() {
  static auto* scheduler = new Scheduler;
  return *scheduler;
}

// A child may ask for the schedule.
const ForkLocks schedule_fork_locks([] { scheduler().lock(); }, [] { scheduler().unlock(); });

[[maybe_unused]] const bool is_scheduler_installed = [] {
  turns::order = &scheduler();
  return true;
}();

}  // namespace
}  // namespace openreg

using namespace openreg;

extern "C" {

orError_t orSetSchedule(const char* text) {
  return guarded([&] {
    if (const orError_t error = check_not_forked()) return error;
    if (const orError_t error = check_settings()) return error;
    const std::optional<Schedule> schedule = text == nullptr ? std::nullopt : parse_schedule(text);
    if (!schedule) {
      return fail(orErrorInvalidValue,
                  concat("orSetSchedule: expected free, lazy, eager or a number, got '",
                         text == nullptr ? "NULL" : text, "'"));
    }
    if (Worker::current_stream() != nullptr) {
      return fail(orErrorNotPermitted,
                  "orSetSchedule: work on a stream cannot change the schedule");
    }
    scheduler().begin();
    for (Device* device : active_devices()) {
      if (const orError_t error = check_may_wait(device->index(), "orSetSchedule")) return error;
      if (const orError_t error = device->wait()) return error;
    }
    const std::vector<Stream*> streams = all_streams();
    const bool is_idle = std::all_of(streams.begin(), streams.end(),
                                     [](const Stream* stream) { return stream->is_idle(); });
    if (is_idle && scheduler().change(*schedule)) return orSuccess;
    return fail(orErrorNotPermitted,
                "orSetSchedule: expected no work on any stream, but another thread submits some");
  });
}

orError_t orGetSchedule(char* text, size_t size) {
  return guarded([&] {
    if (const orError_t error = check_settings()) return error;
    scheduler().begin();
    const std::string schedule = text_of(scheduler().current());
    if (text == nullptr || size <= schedule.size()) {
      return fail(orErrorInvalidValue, concat("orGetSchedule: expected room for ",
                                              schedule.size() + 1, " bytes, got ", size));
    }
    std::memcpy(text, schedule.c_str(), schedule.size() + 1);
    return orSuccess;
  });
}

}  // extern "C"
