#include "csrc/extras/distributed/OcclWork.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include "csrc/core/BlockingRegion.h"
#include "csrc/extras/distributed/CommunicationRecord.h"

namespace at::openreg {

using c10::openreg::getCurrentOpenRegStream;
using c10::openreg::OpenRegStream;

OcclWork::OcclWork(int rank, c10d::OpType type, Setup setup)
    : Work(rank, type), setup_(std::move(setup)) {}

bool OcclWork::isCompleted() {
  if (setup_.completion->isDone()) {
    return also_ == nullptr || also_->isCompleted();
  }
  try {
    return setup_.end->query() && (also_ == nullptr || also_->isCompleted());
  } catch (const c10::Error&) {
    return true;
  }
}

bool OcclWork::isSuccess() const {
  return setup_.completion->isDone() && setup_.completion->exception() == nullptr &&
         (also_ == nullptr || also_->isSuccess());
}

std::exception_ptr OcclWork::exception() const {
  const std::exception_ptr own = setup_.completion->exception();
  return own != nullptr || also_ == nullptr ? own : also_->exception();
}

int OcclWork::sourceRank() const {
  const c10::openreg::BlockingRegion region;
  setup_.completion->wait(std::chrono::milliseconds(-1));
  if (const std::exception_ptr error = setup_.completion->exception()) {
    std::rethrow_exception(error);
  }
  return setup_.completion->sourceRank();
}

void OcclWork::synchronize() {
  if (!setup_.is_captured) {
    setup_.state->checkHasNotFailed(nameOf(setup_.kind));
  }
  const OpenRegStream current = getCurrentOpenRegStream(setup_.stream.device_index());
  if (current.unwrap() != setup_.stream) {
    setup_.end->block(current.unwrap());
  }
  if (also_ != nullptr) {
    also_->synchronize();
  }
}

void OcclWork::waitOnHost(std::chrono::milliseconds timeout) {
  const c10::openreg::BlockingRegion region;
  if (timeout == kNoTimeout) {
    try {
      setup_.end->synchronize();
    } catch (const c10::Error&) {
      // The operation's own error is thrown below, if it has one.
      if (setup_.completion->exception() == nullptr) {
        throw;
      }
    }
  } else if (!setup_.completion->wait(timeout)) {
    throwDistributedError(c10::str(nameOf(setup_.kind), ".wait: timed out after ", timeout.count(),
                                   " ms waiting for operation ", setup_.number, " of ",
                                   setup_.state->describe()));
  }
  if (const std::exception_ptr error = setup_.completion->exception()) {
    std::rethrow_exception(error);
  }
}

bool OcclWork::wait(std::chrono::milliseconds timeout) {
  if (isRecording()) {
    recordWait(*setup_.state, setup_.number, setup_.is_message, [&] { waitHereOrOnHost(timeout); });
  } else {
    waitHereOrOnHost(timeout);
  }
  return true;
}

void OcclWork::waitHereOrOnHost(std::chrono::milliseconds timeout) {
  const bool is_on_host = timeout != kNoTimeout || setup_.waits_on_host;
  TORCH_CHECK(!is_on_host || !setup_.is_captured, nameOf(setup_.kind),
              ".wait: expected no wait on the host during a capture; a graph cannot repeat it");
  if (is_on_host) {
    waitOnHost(timeout);
    if (also_ != nullptr) {
      also_->waitOnHost(timeout);
    }
  }
  synchronize();
}

void OcclWork::abort() {
  const c10::openreg::BlockingRegion region;
  setup_.state->fail(
      c10::str(nameOf(setup_.kind), ".abort was called on rank ", setup_.state->rank()));
}

c10::intrusive_ptr<c10::ivalue::Future> OcclWork::getFuture() {
  if (future_ == nullptr) {
    makeFuture();
  }
  return future_;
}

void OcclWork::makeFuture() {
  future_ =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                               std::vector<c10::Device>{setup_.stream.device()});
  const c10::StreamGuard guard(setup_.stream);
  future_->markCompleted(c10::IValue(setup_.outputs));
}

void BatchedWork::synchronize() {
  if (batch_->work) {
    batch_->work->synchronize();
  }
}

bool BatchedWork::wait(std::chrono::milliseconds timeout) {
  return batch_->work ? batch_->work->wait(timeout) : true;
}

c10::intrusive_ptr<c10::ivalue::Future> BatchedWork::getFuture() {
  TORCH_CHECK(batch_->work,
              "Work.get_future: expected a batch that has been launched, got one that "
              "is still being collected");
  return batch_->work->getFuture();
}

}  // namespace at::openreg
