#include "queue/command.h"

#include <openreg/trace.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "base/os.h"
#include "base/setting.h"
#include "base/spin.h"

namespace openreg {
namespace {

constexpr size_t max_entry_size =
    sizeof(Command) + OPENREG_MAX_INLINE_CLOSURE_SIZE + os::cache_line_size;
constexpr size_t space_step = ring_capacity / 4;
static_assert(ring_capacity % os::cache_line_size == 0);
static_assert(max_entry_size % os::cache_line_size == 0);
static_assert(2 * max_entry_size < space_step, "an entry and the skip entry before it");

// Pages that a lightly loaded stream cycles through: they fit into a core's second-level cache
// beside the data of kernels.
constexpr size_t restart_distance = size_t{64} << 10;

// How long a worker looks for its next command before it sleeps. Waking a sleeping thread costs
// the submitting thread a system call and delays the command by tens of microseconds; hosts
// submit every 2 to 20 us while they prepare work. Longer would take a core from hosts that
// compute: the machines we run on may have two.
constexpr int64_t worker_spin_ns = 50'000;

// How long a worker sleeps before it calls its idle function.
constexpr std::chrono::milliseconds idle_after{OPENREG_IDLE_MILLISECONDS};

constexpr uint64_t round_up(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

orActivityKind activity_kind_of(CommandKind kind) {
  switch (kind) {
    case CommandKind::Copy:
      return orActivityMemcpy;
    case CommandKind::Fill:
      return orActivityMemset;
    case CommandKind::HostFunction:
      return orActivityHostFunc;
    default:
      return orActivityKernel;
  }
}

}  // namespace

void move_closure(const Submission& submission, void* to) {
  if (submission.kernel->move != nullptr) {
    submission.kernel->move(to, submission.closure);
  } else if (submission.closure_size > 0) {
    std::memcpy(to, submission.closure, submission.closure_size);
  }
}

void Command::describe(const Submission& submission) {
  kernel = submission.kernel;
  function = submission.function;
  kind = submission.kind;
  bytes = submission.bytes;
  memcpy_kind = static_cast<int8_t>(submission.memcpy_kind);
  peer_device = static_cast<int8_t>(submission.peer_device);
  is_skipped = submission.is_skipped;
}

orActivityRecord Command::activity(int device, uint64_t stream_id) {
  orActivityRecord record = {.kind = activity_kind_of(kind),
                             .name = name(),
                             .device = device,
                             .stream_id = stream_id,
                             .correlation_id = correlation_id,
                             .external_id = external_id,
                             .has_external_id = has_external_id,
                             .thread_id = os::thread_id(),
                             .submit_ns = submit_ns,
                             .start_ns = os::now_ns(),
                             .end_ns = 0,
                             .bytes = bytes,
                             .address = 0,
                             .memcpy_kind = memcpy_kind,
                             .peer_device = peer_device};
  if (kernel->describe != nullptr) kernel->describe(closure(), &record);
  return record;
}

CapturedCommand::CapturedCommand(const Submission& submission) {
  const size_t size = sizeof(Command) + submission.closure_size;
  command_ = new (::operator new(size, std::align_val_t{alignof(Command)})) Command;
  command_->describe(submission);
  command_->entry_size = static_cast<uint32_t>(size);
  command_->correlation_id = 0;
  command_->is_large = false;
  try {
    move_closure(submission, command_->closure());
  } catch (...) {
    free_memory();
    throw;
  }
}

CapturedCommand::~CapturedCommand() {
  if (command_ == nullptr) return;
  if (command_->kernel->destroy != nullptr) command_->kernel->destroy(command_->closure());
  free_memory();
}

void CapturedCommand::give_back(const Submission& submission) {
  Submission backward = submission;
  backward.closure = command_->closure();
  move_closure(backward, submission.closure);
  free_memory();
}

void CapturedCommand::free_memory() {
  ::operator delete(std::exchange(command_, nullptr), std::align_val_t{alignof(Command)});
}

orError_t CommandRing::allocate() {
  memory_ = static_cast<std::byte*>(os::map_memory(ring_capacity));
  if (memory_ == nullptr) {
    return fail(orErrorOperatingSystem,
                "no memory for a stream's queue: " + os::error_text("mmap"));
  }
  new (at(0)) Command;
  return orSuccess;
}

CommandRing::Status CommandRing::reserve(size_t closure_size, size_t counted_bytes, bool may_wait,
                                         Slot* slot) {
  const bool is_counted = counted_bytes > 0;
  const size_t size = round_up(sizeof(Command) + closure_size + (is_counted ? sizeof(uint64_t) : 0),
                               os::cache_line_size);
  Lock lock(mutex_);
  for (;;) {
    if (is_stopped_) return Status::Stopped;
    if (is_closed_) return Status::Closed;
    const size_t rest = ring_capacity - tail_ % ring_capacity;
    const size_t skipped = size <= rest ? 0 : rest;
    const uint64_t begin = tail_ + skipped;
    if (begin + size - freed_ < ring_capacity && (!is_counted || may_count(counted_bytes))) {
      new (at(begin + size)) Command;
      if (skipped > 0) {
        new (at(begin)) Command;
        at(tail_)->entry_size = static_cast<uint32_t>(skipped);
        at(tail_)->state.store(Command::State::Skip, std::memory_order_release);
      }
      tail_ = begin + size;
      slot->command = at(begin);
      slot->command->entry_size = static_cast<uint32_t>(size);
      slot->command->is_counted = is_counted;
      if (is_counted) {
        counted_bytes_ += counted_bytes;
        slot->command->counted_bytes() = counted_bytes;
      }
      slot->sequence = submitted_.load(std::memory_order_relaxed) + 1;
      slot->wakes_worker = std::exchange(is_worker_asleep_, false);
      submitted_.store(slot->sequence, std::memory_order_release);
      return Status::Granted;
    }
    if (!may_wait) return Status::Full;
    ++space_waiters_;
    lock.wait(space_appears_);
    --space_waiters_;
  }
}

void CommandRing::commit(const Slot& slot) {
  slot.command->state.store(Command::State::Ready, std::memory_order_release);
  if (slot.wakes_worker) worker_wakes_.notify_one();
}

Command* CommandRing::next() {
  for (;;) {
    Command* command = at(head_);
    const Command::State state = command->state.load(std::memory_order_acquire);
    if (state == Command::State::Ready) return command;
    if (state == Command::State::Skip) {
      pop(command);
    } else if (!wait_for_entry()) {
      return nullptr;
    }
  }
}

void CommandRing::pop(Command* command) {
  head_ += command->entry_size;
  if (head_ - passed_back_ < space_step) return;
  passed_back_ = head_;
  bool has_waiters = false;
  {
    const Lock lock(mutex_);
    freed_ = head_;
    has_waiters = space_waiters_ > 0;
  }
  if (has_waiters) space_appears_.notify_all();
}

bool CommandRing::may_count(size_t bytes) const {
  const size_t limit = settings().queue_memory;
  return limit == 0 || counted_bytes_ == 0 || bytes <= limit - std::min(limit, counted_bytes_);
}

void CommandRing::uncount(size_t bytes) {
  bool has_waiters = false;
  {
    const Lock lock(mutex_);
    counted_bytes_ -= bytes;
    has_waiters = space_waiters_ > 0;
  }
  if (has_waiters) space_appears_.notify_all();
}

void CommandRing::free() { os::unmap(std::exchange(memory_, nullptr), ring_capacity); }

void CommandRing::close() { end(&CommandRing::is_closed_); }

void CommandRing::stop() { end(&CommandRing::is_stopped_); }

bool CommandRing::is_closed() const {
  const Lock lock(mutex_);
  return is_closed_;
}

Command* CommandRing::at(uint64_t position) const {
  return reinterpret_cast<Command*>(memory_ + position % ring_capacity);
}

// Waits until the entry at head_ is committed. Returns false if none will come.
bool CommandRing::wait_for_entry() {
  if (head_ % ring_capacity >= restart_distance) restart_if_empty();
  const std::atomic<Command::State>& state = at(head_)->state;
  const auto is_committed = [&state] {
    return state.load(std::memory_order_acquire) != Command::State::Empty;
  };
  return spin_until(is_committed, worker_spin_ns) || sleep_until_entry();
}

bool CommandRing::sleep_until_entry() {
  Lock lock(mutex_);
  while (!is_stopped_) {
    if (tail_ != head_) {
      // A producer is storing the command. It has lost its processor, or it would be done.
      lock.unlock();
      os::yield();
      return true;
    }
    if (is_closed_) return false;
    is_worker_asleep_ = true;
    if (idle_function_ != nullptr) {
      lock.wait_for(worker_wakes_, idle_after);
      if (is_worker_asleep_) {
        lock.unlock();
        idle_function_();
        lock.lock();
      }
    }
    while (is_worker_asleep_) lock.wait(worker_wakes_);
  }
  return false;
}

void CommandRing::restart_if_empty() {
  const Lock lock(mutex_);
  if (tail_ != head_) return;
  tail_ = round_up(tail_, ring_capacity);
  freed_ = tail_;
  head_ = tail_;
  passed_back_ = tail_;
  new (at(0)) Command;
}

// Sets the flag that says how it ends, and wakes all who wait for something else.
void CommandRing::end(bool CommandRing::* how) {
  {
    const Lock lock(mutex_);
    this->*how = true;
    is_worker_asleep_ = false;
  }
  worker_wakes_.notify_one();
  space_appears_.notify_all();
}

}  // namespace openreg
