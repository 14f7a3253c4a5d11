// What a collective returns: something to wait for, by streams or by the host.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "csrc/distributed/GroupState.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {

class OcclWork : public c10d::Work {
 public:
  struct Setup {
    std::shared_ptr<GroupState> state;
    std::shared_ptr<Completion> completion;
    std::shared_ptr<c10::Event> end;  // of the operation, on its stream
    c10::Stream stream;
    CollectiveKind kind;
    uint64_t number;
    bool is_captured;
    bool waits_on_host;  // barriers
    bool is_message;
    std::vector<Tensor> outputs;
  };

  OcclWork(int rank, c10d::OpType type, Setup setup);

  // Waiting for this one is waiting for the other as well.
  void also(c10::intrusive_ptr<OcclWork> other) { also_ = std::move(other); }

  // Whether the operation is over, with or without an error.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<Tensor> result() override { return setup_.outputs; }

  // Makes the current stream wait.
  // Errors: DistBackendError if the group has failed.
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }

  // The same; with a timeout, or for a barrier, the host waits, too.
  // Errors: as synchronize(); of a wait of the host also what the operation failed with, and that
  // the time is over, which changes nothing for the operation.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

  // Fails the whole group: ranks cannot take back what others wait for.
  void abort() override;

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override { return setup_.completion->milliseconds(); }
  uint64_t getSequencenumber() const override { return setup_.number; }

  // Makes the future that getFuture() returns, now.
  void makeFuture();

 private:
  void waitHereOrOnHost(std::chrono::milliseconds timeout);
  void waitOnHost(std::chrono::milliseconds timeout);

  const Setup setup_;
  c10::intrusive_ptr<OcclWork> also_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The work of an operation inside of a batch, before the batch has been launched: waiting for it
// means nothing until then, and waiting for the batch afterwards.
class BatchedWork : public c10d::Work {
 public:
  struct Batch {
    c10::intrusive_ptr<c10d::Work> work;  // null until launched
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
