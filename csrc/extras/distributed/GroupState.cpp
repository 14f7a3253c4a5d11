#include "csrc/extras/distributed/GroupState.h"

#include <c10/util/StringUtil.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "csrc/core/Settings.h"

namespace at::openreg {

using c10::openreg::Lock;
using std::chrono::steady_clock;

namespace {

const c10::openreg::Setting kOnError{
    "OPENREG_OCCL_ON_ERROR", "raise", "raise abort",
    "What a distributed operation that fails does. abort: it ends the process."};

}  // namespace

void throwDistributedError(const std::string& text) {
  throw c10::DistBackendError({__func__, __FILE__, uint32_t(__LINE__)}, text);
}

void Completion::begin() {
  const Lock lock(mutex_);
  begun_ = steady_clock::now();
}

void Completion::finish(std::exception_ptr exception, int source_rank) {
  const Lock lock(mutex_);
  finished_ = steady_clock::now();
  is_done_ = true;
  source_rank_ = source_rank;
  exception_ = std::move(exception);
  changed_.notify_all();
}

bool Completion::isDone() const {
  const Lock lock(mutex_);
  return is_done_;
}

std::exception_ptr Completion::exception() const {
  const Lock lock(mutex_);
  return exception_;
}

int Completion::sourceRank() const {
  const Lock lock(mutex_);
  return source_rank_;
}

float Completion::milliseconds() const {
  const Lock lock(mutex_);
  return is_done_ ? std::chrono::duration<float, std::milli>(finished_ - begun_).count() : 0;
}

bool Completion::wait(std::chrono::milliseconds timeout) const {
  const auto deadline = steady_clock::now() + timeout;
  Lock lock(mutex_);
  while (!is_done_) {
    if (timeout.count() < 0) {
      lock.wait(changed_);
    } else if (lock.waitUntil(changed_, deadline) == std::cv_status::timeout) {
      return is_done_;
    }
  }
  return true;
}

GroupState::GroupState(int rank, int size, std::chrono::milliseconds timeout)
    : rank_(rank), size_(size), aborts_process_(kOnError.text() == "abort"), timeout_(timeout) {}

void GroupState::extendTimeouts(std::chrono::milliseconds extension) {
  const Lock lock(mutex_);
  extension_.all += extension;
}

GroupState::Extension GroupState::takeExtension() {
  const Lock lock(mutex_);
  const Extension taken{extension_.all, extension_.all - extension_.owned};
  extension_.owned = extension_.all;
  return taken;
}

void GroupState::endExtension(std::chrono::milliseconds owned) {
  const Lock lock(mutex_);
  extension_.all -= owned;
  extension_.owned -= owned;
}

void GroupState::setName(const std::string& name) {
  const Lock lock(mutex_);
  label_.name = name;
}

void GroupState::setDescription(const std::string& description) {
  const Lock lock(mutex_);
  label_.description = description;
}

void GroupState::setGlobalRanks(const std::vector<uint64_t>& ranks) {
  if (ranks.empty()) {
    return;
  }
  const Lock lock(mutex_);
  label_.first_rank = static_cast<int>(ranks.front());
  label_.rank_stride = ranks.size() == 1 ? 1 : static_cast<int>(ranks[1] - ranks[0]);
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (static_cast<int>(ranks[i] - ranks[i - 1]) != label_.rank_stride) {
      label_.rank_stride = -1;
      return;
    }
  }
}

GroupState::Label GroupState::label() const {
  const Lock lock(mutex_);
  return label_;
}

std::string GroupState::describe() const {
  const Lock lock(mutex_);
  const std::string description =
      label_.description.empty() ? "" : c10::str(" (", label_.description, ")");
  return c10::str("group '", label_.name, "'", description, ", rank ", rank_, " of ", size_);
}

void GroupState::setTransport(std::shared_ptr<Transport> transport) {
  const Lock lock(mutex_);
  transport_ = std::move(transport);
}

void GroupState::fail(const std::string& text) noexcept {
  std::shared_ptr<Transport> transport;
  {
    const Lock lock(mutex_);
    if (!has_failed_) {
      failure_ = text;
      has_failed_ = true;
    }
    transport = transport_;
  }
  if (transport != nullptr) {
    transport->fail(text);
  }
}

void GroupState::failByOperation(const std::string& text) noexcept {
  const bool is_first = !hasFailed();
  fail(text);
  if (is_first && aborts_process_) {
    std::fprintf(stderr, "OPENREG_OCCL_ON_ERROR=abort: %s\n", text.c_str());
    std::abort();
  }
}

std::string GroupState::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

void GroupState::checkHasNotFailed(const char* operation) const {
  if (hasFailed()) {
    throwDistributedError(c10::str(operation, ": expected a working group, got ", describe(),
                                   ", which has failed; destroy it and create a new one. It "
                                   "failed with:\n",
                                   failure()));
  }
}

void GroupState::checkWorks(const char* operation) const {
  checkHasNotFailed(operation);
  if (is_retired_) {
    throwDistributedError(
        c10::str(operation, ": expected a live group, got ", describe(), ", which was destroyed"));
  }
}

void GroupState::endPending() {
  const Lock lock(mutex_);
  if (--pending_ == 0) {
    changed_.notify_all();
  }
}

bool GroupState::waitForPending(std::chrono::milliseconds timeout) const {
  const auto deadline = steady_clock::now() + timeout;
  Lock lock(mutex_);
  while (pending_ > 0) {
    if (lock.waitUntil(changed_, deadline) == std::cv_status::timeout) {
      return pending_ == 0;
    }
  }
  return true;
}

}  // namespace at::openreg
