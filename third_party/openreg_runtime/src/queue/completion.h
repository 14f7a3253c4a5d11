// Completions: the results of records of events. See Note [One completion per record] in
// openreg/event.h.
//
// A completion refers to a command of a stream, its record, and is complete when that has retired.
// So waits use the stream's timeline, and it needs no lock: the worker stores the result before it
// retires the record, and other threads read it after they have seen that.
//
// Two kinds reach across processes: that of an event that other processes may wait for, and that of
// a record which another process is to complete. The latter is made for one wait, and used by one
// thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/error.h"
#include "queue/remote_record.h"

namespace openreg {

class Stream;

class Completion {
 public:
  // Host: binds it to its record. Called once, before another thread can access it.
  void bind(Stream& stream, uint64_t sequence);

  // Host: makes it one of a shared event. Called before bind().
  orError_t share(SharedEvent& event) { return event.make_record(&shared_); }
  const SharedRecord& shared() const { return *shared_; }

  // Worker: stores the result, before it retires the record.
  void resolve(int64_t time_ns, FailureRef failure);

  bool is_complete() const;

  // Waits until it is complete. Fails as Stream::wait() does.
  orError_t wait() const;

  // The result. Only for a complete one.
  int64_t time_ns() const { return time_ns_; }
  const FailureRef& failure() const { return failure_; }

  // The stream of the record, null if that is another process's.
  Stream* stream() const { return stream_; }

  // The number of the record in that stream.
  uint64_t sequence() const { return sequence_; }

 private:
  friend class CompletionRef;

  void clear();

  Stream* stream_ = nullptr;
  uint64_t sequence_ = 0;
  int64_t time_ns_ = 0;
  mutable FailureRef failure_;
  std::unique_ptr<SharedRecord> shared_;
  std::unique_ptr<RemoteRecord> remote_;  // then it has no stream
  std::atomic<int> references_{0};
  Completion* next_free_ = nullptr;
};

// A counted reference to a completion. The last one returns it to a pool.
class CompletionRef {
 public:
  CompletionRef() = default;
  static CompletionRef make();
  static CompletionRef make(std::unique_ptr<RemoteRecord> record);

  CompletionRef(const CompletionRef& other);
  CompletionRef(CompletionRef&& other) noexcept
      : completion_(std::exchange(other.completion_, nullptr)) {}
  CompletionRef& operator=(CompletionRef other) noexcept {
    std::swap(completion_, other.completion_);
    return *this;
  }
  ~CompletionRef();

  explicit operator bool() const { return completion_ != nullptr; }
  Completion* operator->() const { return completion_; }

 private:
  Completion* completion_ = nullptr;
};

}  // namespace openreg
