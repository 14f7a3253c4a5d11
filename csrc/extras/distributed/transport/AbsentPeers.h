// A process group of which only one rank exists, for dry runs of programs with many ranks.
//
// Note [Absent peers]
// The other ranks are absent, and behave as if each of them were this one: a sum is this rank's
// values times the number of ranks, gathered tensors are copies of this rank's, and what a root
// broadcasts is what this rank has there already. Calls are complete when they return. Of a message
// to another rank nothing is left, and a message from one is an error, since its contents are that
// rank's alone.
//
// This class takes Gloo's place, both for the collectives of streams (Transport.h) and as the
// backend of tensors on the CPU. There is nothing to agree on with absent ranks.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

class OPENREG_EXPORT AbsentPeers final : public c10d::Backend {
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;

 public:
  AbsentPeers(int rank, int size) : Backend(rank, size) {}

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
  // Errors: DistBackendError, of the call.
  Work recv(Tensors& tensors, int source, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }

 private:
  void reduceOwn(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
};

// Whether the groups of this process that are created from now on have absent peers.
OPENREG_EXPORT void setPeersAbsent(bool are_absent);
bool arePeersAbsent();

}  // namespace at::openreg
