// The device's backend for torch.distributed: collectives on streams, as with NCCL, over Gloo.
//
// Threads: any thread may call any function. A batch belongs to the thread that began it.
// GIL: not needed; functions that wait release it if the caller holds it.
// Name: "occl", or "nccl" where the library serves CUDA and takes the place of NCCL.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "csrc/core/Mutex.h"
#include "csrc/extras/distributed/Communicators.h"
#include "csrc/extras/distributed/Engine.h"
#include "csrc/extras/distributed/OcclWork.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

class OPENREG_EXPORT ProcessGroupOCCL : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options(backendName(), timeout) {}

    bool is_high_priority_stream = false;
  };

  // Makes a Gloo backend for the ranks that call it with the same store, on the calling thread.
  using GlooFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>&, int rank, int size, std::chrono::milliseconds)>;

  // Call once, before the first group is created.
  static void setGlooFactory(GlooFactory factory);

  // Connects the ranks.
  ProcessGroupOCCL(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   c10::intrusive_ptr<Options> options);
  ~ProcessGroupOCCL() override;

  static const char* backendName();
  const std::string getBackendName() const override { return backendName(); }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  // Extends the timeout of operations that are issued until the first of them ends.
  void addEphemeralTimeout(std::chrono::milliseconds timeout);
  void setGroupUid(const std::string& uid) override;

  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  uint64_t splitCount() const { return split_count_; }

  void eagerConnectSingleDevice(at::Device device) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return state_->lastNumber(); }
  c10d::ErrorType getError() override;

  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<Tensor>>& outputs,
                                           std::vector<Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(Tensor& output, Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<Tensor>>& outputs, std::vector<Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<Tensor>& outputs, std::vector<Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<Tensor>>& outputs,
                                        std::vector<Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<Tensor>& outputs,
                                         std::vector<std::vector<Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<Tensor>& outputs,
                                                std::vector<std::vector<Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<Tensor>& outputs, std::vector<Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(Tensor& output, Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<Tensor>& outputs, std::vector<Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<Tensor>& tensors, int destination,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  // The streams on which the group's operations have run, including its own, on all devices.
  std::vector<c10::openreg::OpenRegStream> streams();

  // Waits for all ranks. Errors: DistBackendError, which names every rank that did not arrive in
  // time, whatever `wait_all_ranks` is. The group has failed then.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Makes the group fail on this rank, and on the other ranks if they can still be reached.
  void abort() override;
  // Waits until the operations of this rank are complete, for at most the group's timeout. Then
  // waits until the other ranks have read its messages or have ended, for at most the timeout and
  // at most kGoodbyeTime. Then closes the connections. Does not throw; warns if an operation or a
  // rank did not end in time.
  void shutdown() override;

 private:
  // One side of a message from this rank to itself.
  struct MessageToSelf {
    bool is_sent;
    int tag;
    Tensor tensor;
  };
  struct CurrentBatch {
    std::thread::id owner;
    std::optional<c10::Device> device;
    std::vector<Request> requests;
    std::vector<MessageToSelf> to_self;
    std::shared_ptr<BatchedWork::Batch> batch;
  };

  Membership group() const { return {rank_, size_}; }
  // The request of one call. A barrier waits on the host.
  template <typename CallOptions>
  Request makeRequest(c10d::OpType type, const CallOptions& options, std::vector<Tensor> outputs,
                      std::vector<Collective> collectives) const;
  c10::Device deviceOf(const c10d::BarrierOptions& options);
  // For a rank that has used no device.
  c10::DeviceIndex deviceOfRank() const;
  Engine& engineFor(c10::Device device);
  c10::intrusive_ptr<c10d::Work> submit(Request request);
  c10::intrusive_ptr<c10d::Work> enqueue(Request request);
  c10::intrusive_ptr<c10d::Work> submitMessage(c10d::OpType type, std::vector<Tensor>& tensors,
                                               Collective collective,
                                               std::vector<ChannelKey> channels);
  // Null outside of a batch.
  c10::intrusive_ptr<c10d::Work> submitToSelf(c10d::OpType type, const Tensor& tensor, int tag);
  void pairMessagesToSelf(CurrentBatch& batch);
  // See Note [Communicators].
  void joinCommunicators(c10::Device device, const Request& request);
  void repairDefaultBackend();
  bool waitForOperations(std::chrono::steady_clock::time_point deadline) OPENREG_EXCLUDES(mutex_);

  const c10::intrusive_ptr<Options> options_;
  const std::shared_ptr<GroupState> state_;
  std::optional<Communicators> communicators_;  // where the device type is CUDA
  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<IssueOrder> order_ = std::make_shared<IssueOrder>();
  std::once_flag is_repaired_;
  std::atomic<uint64_t> split_count_{0};

  c10::openreg::Mutex mutex_;
  std::map<c10::DeviceIndex, std::unique_ptr<Engine>> engines_ OPENREG_GUARDED_BY(mutex_);
  std::vector<CurrentBatch> batches_ OPENREG_GUARDED_BY(mutex_);
};

}  // namespace at::openreg
