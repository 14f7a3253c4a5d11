// What the operations of a group share, and outlives the group while they are under way.
//
// Note [Failed groups]
// The first failure of an operation is that of the group, for good: operations that were lost on
// one rank would otherwise pair with other ones of other ranks. It closes the connections, so that
// other ranks fail as well, and each later call raises it again. An operation that its stream
// leaves out, since the stream holds the error of an earlier kernel, is such a failure, too.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/distributed/Contract.h"
#include "csrc/distributed/Transport.h"

namespace at::openreg {

// The outcome of an operation, for those who wait on the host.
class Completion {
 public:
  void begin();
  void finish(std::exception_ptr exception, int source_rank);

  bool isDone() const;
  // Null if it has not failed.
  std::exception_ptr exception() const;
  int sourceRank() const;
  // From begin() to finish(); 0 before the end.
  float milliseconds() const;

  // Waits for finish(); false if it has not come within the time. Negative: no limit.
  bool wait(std::chrono::milliseconds timeout) const;

 private:
  mutable c10::openreg::Mutex mutex_;
  mutable std::condition_variable changed_;
  bool is_done_ OPENREG_GUARDED_BY(mutex_) = false;
  int source_rank_ OPENREG_GUARDED_BY(mutex_) = -1;
  std::exception_ptr exception_ OPENREG_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point begun_ OPENREG_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point finished_ OPENREG_GUARDED_BY(mutex_);
};

class GroupState {
 public:
  GroupState(int rank, int size, std::chrono::milliseconds timeout);

  int rank() const { return rank_; }
  int size() const { return size_; }

  std::chrono::milliseconds timeout() const { return timeout_.load(); }
  void setTimeout(std::chrono::milliseconds timeout) { timeout_.store(timeout); }

  // Gives more time to the operations that are enqueued until the first of them is over.
  void extendTimeouts(std::chrono::milliseconds extension);
  struct Extension {
    std::chrono::milliseconds all{};
    // What ends with the operation that asked.
    std::chrono::milliseconds owned{};
  };
  // That of an operation which is being enqueued.
  Extension takeExtension();
  void endExtension(std::chrono::milliseconds owned);

  // For texts.
  void setName(const std::string& name);
  void setDescription(const std::string& description);
  // The ranks of the default group that are in this one; empty: all.
  void setGlobalRanks(const std::vector<uint64_t>& ranks);
  // For profilers.
  struct Label {
    std::string name = "?";
    std::string description;
    int first_rank = 0;
    int rank_stride = 1;  // -1: the ranks have none
  };
  Label label() const;
  // Such as "group '0' (default_pg), rank 1 of 2".
  std::string describe() const;

  // The number of a new operation of the group, from 1.
  uint64_t nextNumber() { return ++last_number_; }
  uint64_t lastNumber() const { return last_number_.load(); }

  void setTransport(std::shared_ptr<Transport> transport);

  // Makes it a failed group, unless it is one, and closes all connections.
  void fail(const std::string& text) noexcept;
  // The same, as an operation has failed. With OPENREG_OCCL_ON_ERROR=abort, ends the process if
  // that is why the group fails.
  void failByOperation(const std::string& text) noexcept;
  bool hasFailed() const { return has_failed_.load(); }
  // It has been destroyed by the program: there are no operations after those that are enqueued.
  void retire() { is_retired_.store(true); }
  std::string failure() const;
  // Errors: DistBackendError for `operation` if the group has failed.
  void checkHasNotFailed(const char* operation) const;
  // The same, and if the group is retired.
  void checkWorks(const char* operation) const;

  // Operations that are on streams and not over. Captured ones do not count.
  void beginPending() { ++pending_; }
  void endPending();
  // False if some are left after the time.
  bool waitForPending(std::chrono::milliseconds timeout) const;

 private:
  const int rank_;
  const int size_;
  const bool aborts_process_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<uint64_t> last_number_{0};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_retired_{false};
  std::atomic<int64_t> pending_{0};
  mutable c10::openreg::Mutex mutex_;
  mutable std::condition_variable changed_;
  Label label_ OPENREG_GUARDED_BY(mutex_);
  std::string failure_ OPENREG_GUARDED_BY(mutex_);
  Extension extension_ OPENREG_GUARDED_BY(mutex_);
  std::shared_ptr<Transport> transport_ OPENREG_GUARDED_BY(mutex_);
};

// Throws what Python sees as torch.distributed.DistBackendError.
[[noreturn]] void throwDistributedError(const std::string& text);

}  // namespace at::openreg
