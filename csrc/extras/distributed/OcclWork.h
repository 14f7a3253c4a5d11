// The work that a collective returns. Streams or the host can wait for it.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "csrc/extras/distributed/GroupState.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {

class OcclWork : public c10d::Work {
 public:
  struct Setup {
    std::shared_ptr<GroupState> state;
    std::shared_ptr<Completion> completion;
    std::shared_ptr<c10::Event> end;  // recorded on the operation's stream, after it
    c10::Stream stream;
    CollectiveKind kind;
    uint64_t number;
    bool is_captured;
    bool waits_on_host;  // true for barriers
    bool is_message;
    std::vector<Tensor> outputs;
  };

  OcclWork(int rank, c10d::OpType type, Setup setup);

  // Makes waits for this work also wait for the other one.
  void also(c10::intrusive_ptr<OcclWork> other) { also_ = std::move(other); }

  // Whether the operation is complete, with or without an error.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<Tensor> result() override { return setup_.outputs; }

  // Makes the current stream wait.
  // Errors: DistBackendError if the group has failed.
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }

  // As synchronize(). With a timeout, or for a barrier, the host waits as well.
  // Errors: those of synchronize(). If the host waits, also the operation's error, and
  // DistBackendError on timeout; a timeout does not affect the operation.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

  // Makes the whole group fail, because other ranks may wait for the operation.
  void abort() override;

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override { return setup_.completion->milliseconds(); }
  uint64_t getSequencenumber() const override { return setup_.number; }

  // Makes the future that getFuture() returns.
  void makeFuture();

 private:
  void waitHereOrOnHost(std::chrono::milliseconds timeout);
  void waitOnHost(std::chrono::milliseconds timeout);

  const Setup setup_;
  c10::intrusive_ptr<OcclWork> also_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The work of an operation inside a batch. Before the batch is launched, a wait does nothing;
// afterwards, it waits for the batch.
class BatchedWork : public c10d::Work {
 public:
  struct Batch {
    c10::intrusive_ptr<c10d::Work> work;  // null until the batch is launched
  };

  BatchedWork(int rank, c10d::OpType type, std::shared_ptr<Batch> batch,
              std::vector<Tensor> outputs)
      : Work(rank, type), batch_(std::move(batch)), outputs_(std::move(outputs)) {}

  bool isCompleted() override { return batch_->work && batch_->work->isCompleted(); }
  bool isSuccess() const override { return batch_->work && batch_->work->isSuccess(); }
  std::exception_ptr exception() const override {
    return batch_->work ? batch_->work->exception() : nullptr;
  }
  std::vector<Tensor> result() override { return outputs_; }
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::shared_ptr<Batch> batch_;
  const std::vector<Tensor> outputs_;
};

}  // namespace at::openreg
