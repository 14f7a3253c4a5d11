#include "csrc/extras/distributed/transport/AbsentPeers.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

namespace at::openreg {
namespace {

using Bytes = std::vector<uint8_t>;
using Work = c10::intrusive_ptr<c10d::Work>;

// Leaked; set once, before there are groups.
std::atomic<const std::vector<int>*> running_ranks{nullptr};

c10::intrusive_ptr<c10::ivalue::Future> completedFuture(const std::vector<at::Tensor>& results) {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(results));
  return future;
}

// A call that has returned.
class DoneWork final : public c10d::Work {
 public:
  DoneWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : c10d::Work(rank, type), results_(std::move(results)) {
    finish();
  }

  std::vector<at::Tensor> result() override { return results_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return completedFuture(results_); }

 private:
  const std::vector<at::Tensor> results_;
};

// A message that is received by the first wait, so that what its group sends is sent before.
class ReceivingWork final : public c10d::Work {
 public:
  ReceivingWork(int rank, at::Tensor tensor, std::function<void(const at::Tensor&)> receive)
      : c10d::Work(rank, c10d::OpType::RECV),
        tensor_(std::move(tensor)),
        receive_(std::move(receive)) {}

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    // An exception leaves the message to the next wait.
    std::call_once(is_received_, [this] {
      receive_(tensor_);
      finish();
    });
    return true;
  }

  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return {tensor_}; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait(kNoTimeout);
    return completedFuture(result());
  }

 private:
  const at::Tensor tensor_;
  const std::function<void(const at::Tensor&)> receive_;
  std::once_flag is_received_;
};

Work done(int rank, c10d::OpType type, std::vector<at::Tensor> results = {}) {
  return c10::make_intrusive<DoneWork>(rank, type, std::move(results));
}

// Copies the elements that both have, whatever the shapes are.
void copyFlat(const at::Tensor& to, const at::Tensor& from) {
  const int64_t count = std::min(to.numel(), from.numel());
  to.reshape({-1}).narrow(0, 0, count).copy_(from.reshape({-1}).narrow(0, 0, count));
}

}  // namespace

void setRunningRanks(std::vector<int> ranks) {
  running_ranks = new std::vector<int>(std::move(ranks));
}

bool arePeersAbsent() { return running_ranks.load() != nullptr; }

AbsentPeers::AbsentPeers(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : Backend(rank, size), store_(std::move(store)) {}

bool AbsentPeers::isRunning(int rank) const {
  const std::vector<int>* const running = running_ranks.load();
  const std::vector<uint64_t>& ranks = options_->global_ranks_in_group;
  const auto index = static_cast<size_t>(rank);
  const int global = index < ranks.size() ? static_cast<int>(ranks[index]) : rank;
  return std::ranges::find(*running, global) != running->end();
}

std::string AbsentPeers::nextKey(int source, int destination, int tag) {
  std::string key =
      c10::str("openreg_message/", source, "/", destination, "/", tag, "/");  // as in _ranks.py
  const c10::openreg::Lock lock(mutex_);
  const uint64_t number = counts_[key]++;
  return key + std::to_string(number);
}

void AbsentPeers::reduceOwn(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  switch (op) {
    case c10d::ReduceOp::SUM:
      // Of bools it is "or".
      if (tensor.scalar_type() != at::kBool) {
        tensor.mul_(size_);
      }
      break;
    case c10d::ReduceOp::PRODUCT:
      tensor.pow_(size_);
      break;
    case c10d::ReduceOp::BXOR:
      if (size_ % 2 == 0) {
        tensor.zero_();
      }
      break;
    default:  // the mean, the least, the largest, "and" and "or" of equal values
      break;
  }
}

Work AbsentPeers::broadcast(Tensors& tensors, const c10d::BroadcastOptions& /*options*/) {
  return done(rank_, c10d::OpType::BROADCAST, tensors);
}

Work AbsentPeers::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  for (const at::Tensor& tensor : tensors) {
    reduceOwn(tensor, options.reduceOp);
  }
  return done(rank_, c10d::OpType::ALLREDUCE, tensors);
}

Work AbsentPeers::allreduce_coalesced(Tensors& tensors,
                                      const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

Work AbsentPeers::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  if (options.rootRank == rank_) {
    for (const at::Tensor& tensor : tensors) {
      reduceOwn(tensor, options.reduceOp);
    }
  }
  return done(rank_, c10d::OpType::REDUCE, tensors);
}

Work AbsentPeers::allgather(Lists& outputs, Tensors& inputs,
                            const c10d::AllgatherOptions& /*options*/) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const at::Tensor& output : outputs[i]) {
      copyFlat(output, inputs[i]);
    }
  }
  return done(rank_, c10d::OpType::ALLGATHER, outputs.empty() ? Tensors() : outputs.front());
}

Work AbsentPeers::_allgather_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::AllgatherOptions& /*options*/) {
  if (output.numel() > 0) {
    output.view({size_, -1}).copy_(input.reshape({1, -1}).expand({size_, input.numel()}));
  }
  return done(rank_, c10d::OpType::_ALLGATHER_BASE, {output});
}

Work AbsentPeers::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    _allgather_base(outputs[i], inputs[i], options);
  }
  return done(rank_, c10d::OpType::COALESCED, outputs);
}

Work AbsentPeers::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  if (options.rootRank == rank_) {
    for (const at::Tensor& output : outputs.front()) {
      copyFlat(output, inputs.front());
    }
  }
  return done(rank_, c10d::OpType::GATHER, outputs.empty() ? Tensors() : outputs.front());
}

Work AbsentPeers::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  if (options.rootRank == rank_) {
    outputs.front().copy_(inputs.front().at(rank_));
  }
  return done(rank_, c10d::OpType::SCATTER, outputs);
}

Work AbsentPeers::reduce_scatter(Tensors& outputs, Lists& inputs,
                                 const c10d::ReduceScatterOptions& options) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].copy_(inputs[i].at(rank_));
    reduceOwn(outputs[i], options.reduceOp);
  }
  return done(rank_, c10d::OpType::REDUCE_SCATTER, outputs);
}

Work AbsentPeers::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::ReduceScatterOptions& options) {
  if (output.numel() > 0) {
    copyFlat(output, input.reshape({size_, -1}).select(0, rank_));
    reduceOwn(output, options.reduceOp);
  }
  return done(rank_, c10d::OpType::_REDUCE_SCATTER_BASE, {output});
}

Work AbsentPeers::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    _reduce_scatter_base(outputs[i], inputs[i], options);
  }
  return done(rank_, c10d::OpType::COALESCED, outputs);
}

Work AbsentPeers::alltoall_base(at::Tensor& output, at::Tensor& input,
                                std::vector<int64_t>& /*output_splits*/,
                                std::vector<int64_t>& /*input_splits*/,
                                const c10d::AllToAllOptions& /*options*/) {
  copyFlat(output, input);
  return done(rank_, c10d::OpType::ALLTOALL_BASE, {output});
}

Work AbsentPeers::alltoall(Tensors& outputs, Tensors& inputs,
                           const c10d::AllToAllOptions& /*options*/) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    copyFlat(outputs[i], inputs[i]);
  }
  return done(rank_, c10d::OpType::ALLTOALL, outputs);
}

Work AbsentPeers::send(Tensors& tensors, int destination, int tag) {
  if (isRunning(destination)) {
    const at::Tensor plain = tensors.front().contiguous();
    const auto* const bytes = static_cast<const uint8_t*>(plain.const_data_ptr());
    store_->set(nextKey(rank_, destination, tag), Bytes(bytes, bytes + plain.nbytes()));
  }
  return done(rank_, c10d::OpType::SEND);
}

Work AbsentPeers::recv(Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = tensors.front();
  if (source < 0 || !isRunning(source)) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("recv: expected a message of a rank that runs, got one of rank ", source, " for ",
                 tensor.nbytes(), " bytes; of the ", size_, " ranks of this dry run only ranks ",
                 c10::Join(", ", *running_ranks.load()), " run"));
  }
  return c10::make_intrusive<ReceivingWork>(
      rank_, tensor,
      [store = store_, key = nextKey(source, rank_, tag), source, tag](const at::Tensor& into) {
        const Bytes bytes = store->get(key);
        store->deleteKey(key);
        if (bytes.size() != into.nbytes()) {
          C10_THROW_ERROR(DistBackendError,
                          c10::str("recv: expected a message of ", into.nbytes(), " bytes, got ",
                                   bytes.size(), " bytes from rank ", source, " with tag ", tag));
        }
        const at::Tensor plain = at::empty(into.sizes(), into.options());
        std::memcpy(plain.mutable_data_ptr(), bytes.data(), bytes.size());
        into.copy_(plain);
      });
}

Work AbsentPeers::recvAnysource(Tensors& tensors, int tag) { return recv(tensors, -1, tag); }

Work AbsentPeers::barrier(const c10d::BarrierOptions& /*options*/) {
  return done(rank_, c10d::OpType::BARRIER);
}

void AbsentPeers::monitoredBarrier(const c10d::BarrierOptions& /*options*/,
                                   bool /*wait_all_ranks*/) {}

}  // namespace at::openreg
