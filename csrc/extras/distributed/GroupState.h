// State shared by the operations of a group. It outlives the group while operations are running.
//
// Note [Failed groups]
// The first failure of an operation makes the whole group fail permanently. Otherwise, after one
// rank lost an operation, its later operations would pair with different ones of other ranks. The
// failure closes the connections, so that other ranks fail as well, and every later call raises it
// again. An operation that its stream skips after the error of an earlier kernel also counts as a
// failure.
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
#include "csrc/extras/distributed/transport/CollectiveSignature.h"
#include "csrc/extras/distributed/transport/Transport.h"

namespace at::openreg {

// The outcome of an operation, for threads that wait on the host.
class Completion {
 public:
  void begin();
  void finish(std::exception_ptr exception, int source_rank);

  bool isDone() const;
  // Null if the operation has not failed.
  std::exception_ptr exception() const;
  int sourceRank() const;
  // Time from begin() to finish(); 0 before the end.
  float milliseconds() const;

  // Waits for finish(). Returns false on timeout. Negative: no limit.
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

  // Extends the timeout of all operations that are enqueued until the first of them ends.
  void extendTimeouts(std::chrono::milliseconds extension);
  struct Extension {
    std::chrono::milliseconds all{};
    // The part of the extension that ends with the operation that takes it.
    std::chrono::milliseconds owned{};
  };
  // The extension for an operation that is being enqueued.
  Extension takeExtension();
  void endExtension(std::chrono::milliseconds owned);

  // For texts.
  void setName(const std::string& name);
  void setDescription(const std::string& description);
  // The ranks of this group within the default group; empty: all.
  void setGlobalRanks(const std::vector<uint64_t>& ranks);
  // For profilers.
  struct Label {
    std::string name = "?";
    std::string description;
    int first_rank = 0;
    int rank_stride = 1;  // -1: no constant stride
  };
  Label label() const;
  // Such as "group '0' (default_pg), rank 1 of 2".
  std::string describe() const;

  // The number of a new operation of the group, starting at 1.
  uint64_t nextNumber() { return ++last_number_; }
  uint64_t lastNumber() const { return last_number_.load(); }

  void setTransport(std::shared_ptr<Transport> transport);

  // Marks the group as failed, unless it has failed already, and closes all connections.
  void fail(const std::string& text) noexcept;
  // As fail(), for the failure of an operation. With OPENREG_OCCL_ON_ERROR=abort, also ends the
  // process if this is the group's first failure.
  void failByOperation(const std::string& text) noexcept;
  bool hasFailed() const { return has_failed_.load(); }
  // Called when the program destroys the group. No operations may be enqueued afterwards.
  void retire() { is_retired_.store(true); }
  std::string failure() const;
  // Errors: DistBackendError for `operation` if the group has failed.
  void checkHasNotFailed(const char* operation) const;
  // Also throws if the group is retired.
  void checkWorks(const char* operation) const;

  // Operations that are enqueued and not complete. Captured ones do not count.
  void beginPending() { ++pending_; }
  void endPending();
  // Returns false if some are left when the time has passed.
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

// Throws torch.distributed.DistBackendError.
[[noreturn]] void throwDistributedError(const std::string& text);

}  // namespace at::openreg
