// A process group of which few ranks exist, for dry runs of programs with many ranks.
//
// Note [Absent peers]
// The other ranks are absent, and behave as if each of them were this one: a sum is this rank's
// values times the number of ranks, gathered tensors are copies of this rank's, and what a root
// broadcasts is what this rank has there already. Calls are complete when they return, but for the
// receipt of a message, which is complete when it has been waited for. Of a message
// to an absent rank nothing is left, and a message from one is an error, since its contents are
// that rank's alone.
//
// Several ranks may run, each in its own process, such as one of each stage of a pipeline. Messages
// between them are delivered, through the store that they share; in collectives, each of them
// behaves as if it were alone.
//
// This class takes Gloo's place, both for the collectives of streams (Transport.h) and as the
// backend of tensors on the CPU. There is nothing to agree on with absent ranks.
#pragma once

#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "csrc/core/Mutex.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

class OPENREG_EXPORT AbsentPeers final : public c10d::Backend {
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;

 public:
  // Messages go through the group's part of the store.
  AbsentPeers(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // torch sets the ranks of the group in the default group there, before the first message; none:
  // they are the same.
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

  const std::string getBackendName() const override { return "absent"; }
  bool supportsSplitting() const override { return false; }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, Lists& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  // Each rank's output is its own input, as if the parts for one rank were those from it.
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int destination, int tag) override;
  // The work's wait waits for the message of a rank that runs.
  // Errors: DistBackendError, of the call if the source is absent, of the wait if it sends another
  // size; of the wait, the store's, after its timeout.
  Work recv(Tensors& tensors, int source, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }

 private:
  void reduceOwn(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  bool isRunning(int rank) const;
  // The key of the next message from a rank to another one.
  std::string nextKey(int source, int destination, int tag);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_ = c10::make_intrusive<Options>("absent");
  c10::openreg::Mutex mutex_;  // a leaf
  // Of messages, by their keys without numbers.
  std::map<std::string, uint64_t> counts_ OPENREG_GUARDED_BY(mutex_);
};

// The ranks of the default group that run; groups of this process that are created from now on have
// absent peers besides. Call once.
OPENREG_EXPORT void setRunningRanks(std::vector<int> ranks);
bool arePeersAbsent();

}  // namespace at::openreg
