// Gloo for tensors of the device, as builds of torch with CUDA offer it for CUDA tensors.
//
// Note [Gloo on the device]
// In CPU builds of torch, Gloo accepts no device tensors. A collective therefore uses copies in
// host memory. The call waits for the current stream, copies the inputs, and passes the copies to
// the Gloo group that serves the CPU. When Gloo is done, its thread copies the results to the
// device on a stream of the pool; that stream waits for the work that the current stream had at the
// call. Work.wait() blocks the host until Gloo is done, and makes the current stream wait for the
// copies. A rank with a device tensor can communicate with a rank with a CPU tensor, and operations
// of both kinds run in the order of the calls.
//
// Threads: any thread may call any function. GIL: not needed; functions that wait release it.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch_openreg/core/Macros.h"

namespace at::openreg {

class OPENREG_EXPORT DeviceGloo : public c10d::Backend {
 public:
  // `gloo` serves tensors on the CPU.
  explicit DeviceGloo(c10::intrusive_ptr<c10d::Backend> gloo);

  using Tensors = std::vector<Tensor>;
  using Lists = std::vector<Tensors>;
  using Work = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;
  bool supportsSplitting() const override;
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void abort() override;
  void shutdown() override;

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work _allgather_base(Tensor& output, Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(Lists& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, Lists& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(Tensor& output, Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int destination, int tag) override;
  Work recv(Tensors& tensors, int source, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  const c10::intrusive_ptr<c10d::Backend> gloo_;
};

}  // namespace at::openreg
