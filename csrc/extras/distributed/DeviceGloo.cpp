#include "csrc/extras/distributed/DeviceGloo.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "csrc/core/BlockingRegion.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Stream.h"

namespace at::openreg {
namespace {

using c10::openreg::BlockingRegion;
using c10::openreg::kDeviceType;
using c10d::OpType;
using Future = c10::ivalue::Future;

// Copies of an operation's tensors in host memory, which Gloo uses during the lifetime of this
// object.
class Staging {
 public:
  // Copies an input. Waits for the current stream of the tensor's device.
  Tensor in(const Tensor& tensor) {
    noteDevice(tensor);
    return inputs_.emplace_back(isOnDevice(tensor) ? tensor.to(c10::kCPU) : tensor);
  }

  // Allocates an output, which copyBack() copies to the device.
  Tensor out(const Tensor& tensor) {
    noteDevice(tensor);
    return isOnDevice(tensor)
               ? keep(tensor, at::empty_like(tensor, tensor.options().device(c10::kCPU)))
               : keep(tensor, tensor);
  }

  Tensor inOut(const Tensor& tensor) { return keep(tensor, in(tensor)); }

  std::vector<Tensor> in(const std::vector<Tensor>& tensors) {
    return each(tensors, [this](const Tensor& tensor) { return in(tensor); });
  }
  std::vector<Tensor> out(const std::vector<Tensor>& tensors) {
    return each(tensors, [this](const Tensor& tensor) { return out(tensor); });
  }
  std::vector<Tensor> inOut(const std::vector<Tensor>& tensors) {
    return each(tensors, [this](const Tensor& tensor) { return inOut(tensor); });
  }
  std::vector<std::vector<Tensor>> in(const std::vector<std::vector<Tensor>>& lists) {
    return each(lists, [this](const std::vector<Tensor>& tensors) { return in(tensors); });
  }
  std::vector<std::vector<Tensor>> out(const std::vector<std::vector<Tensor>>& lists) {
    return each(lists, [this](const std::vector<Tensor>& tensors) { return out(tensors); });
  }

  // Records the point that the copies to the device wait for.
  void close() {
    if (device_.has_value()) {
      submitted_ = std::make_shared<c10::Event>(kDeviceType);
      submitted_->record(c10::openreg::getCurrentOpenRegStream(device_->index()).unwrap());
    }
  }

  // Copies the results to the device, on the current stream.
  void copyBack() const {
    if (!device_.has_value()) {
      return;
    }
    const c10::DeviceGuard guard(*device_);
    const c10::Stream stream = c10::openreg::getCurrentOpenRegStream(device_->index()).unwrap();
    submitted_->block(stream);
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(kDeviceType);
    for (const auto& [tensor, host] : results_) {
      if (isOnDevice(tensor)) {
        tensor.copy_(host);
        allocator->recordStream(tensor.storage().data_ptr(), stream);
      }
    }
  }

  // As copyBack(), on a stream of the pool, which is also the current stream while `then` runs.
  template <typename Then>
  void copyBackBeside(Then then) const {
    if (!device_.has_value()) {
      then();
      return;
    }
    const c10::StreamGuard guard(
        c10::openreg::getStreamFromPool(/*is_high_priority=*/false, device_->index()).unwrap());
    copyBack();
    then();
  }

  std::vector<Tensor> results() const {
    std::vector<Tensor> tensors;
    for (const auto& [tensor, host] : results_) {
      tensors.push_back(tensor);
    }
    return tensors;
  }

  std::vector<c10::Device> devices() const {
    return device_.has_value() ? std::vector<c10::Device>{*device_} : std::vector<c10::Device>{};
  }

 private:
  static bool isOnDevice(const Tensor& tensor) { return tensor.device().type() == kDeviceType; }

  template <typename List, typename Function>
  static List each(const List& list, Function function) {
    List results;
    for (const auto& element : list) {
      results.push_back(function(element));
    }
    return results;
  }

  // All tensors must be on one device, whose streams order the operation.
  void noteDevice(const Tensor& tensor) {
    if (!isOnDevice(tensor)) {
      return;
    }
    TORCH_CHECK_VALUE(!device_.has_value() || *device_ == tensor.device(),
                      "gloo: expected tensors on one device, got ", *device_, " and ",
                      tensor.device());
    device_ = tensor.device();
  }

  Tensor keep(const Tensor& tensor, const Tensor& host) {
    results_.emplace_back(tensor, host);
    return host;
  }

  std::optional<c10::Device> device_;
  std::vector<Tensor> inputs_;                      // host tensors
  std::vector<std::pair<Tensor, Tensor>> results_;  // pairs of device tensor and host tensor
  std::shared_ptr<c10::Event> submitted_;
};

// The work of a collective. Gloo's thread copies the results to the device.
class StagedWork : public c10d::Work {
 public:
  StagedWork(int rank, OpType type, c10::intrusive_ptr<c10d::Work> gloo, Staging staging)
      : Work(rank, type),
        gloo_(std::move(gloo)),
        results_(staging.results()),
        future_(c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                            staging.devices())) {
    gloo_->getFuture()->addCallback([future = future_, staging = std::move(staging)](Future& done) {
      try {
        if (done.hasError()) {
          future->setError(done.exception_ptr());
          return;
        }
        staging.copyBackBeside([&] { future->markCompleted(c10::IValue(staging.results())); });
      } catch (...) {
        future->setErrorIfNeeded(std::current_exception());
      }
    });
  }

  bool isCompleted() override { return gloo_->isCompleted() && future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override {
    return future_->hasError() ? future_->exception_ptr() : nullptr;
  }
  int sourceRank() const override { return gloo_->sourceRank(); }
  std::vector<Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    const BlockingRegion region;
    gloo_->wait(timeout);
    future_->waitAndThrow();
    return true;
  }
  void abort() override { gloo_->abort(); }
  c10::intrusive_ptr<Future> getFuture() override { return future_; }

 private:
  const c10::intrusive_ptr<c10d::Work> gloo_;
  const std::vector<Tensor> results_;
  const c10::intrusive_ptr<Future> future_;
};

// The work of operations that Gloo completes in wait(): messages, and reductions to several ranks.
// It has no future.
class WaitedWork : public c10d::Work {
 public:
  WaitedWork(int rank, OpType type, c10::intrusive_ptr<c10d::Work> gloo, Staging staging)
      : Work(rank, type), gloo_(std::move(gloo)), staging_(std::move(staging)) {}

  bool isCompleted() override { return is_over_ || gloo_->isCompleted(); }
  bool isSuccess() const override { return gloo_->isSuccess(); }
  std::exception_ptr exception() const override { return gloo_->exception(); }
  int sourceRank() const override { return gloo_->sourceRank(); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    const BlockingRegion region;
    if (!is_over_) {
      if (!gloo_->wait(timeout)) {
        return false;
      }
      is_over_ = true;
      staging_.copyBack();
    }
    return true;
  }
  void abort() override { gloo_->abort(); }

 private:
  const c10::intrusive_ptr<c10d::Work> gloo_;
  const Staging staging_;
  bool is_over_ = false;
};

// Calls Gloo with the host copies that the call makes of its tensors.
template <typename StagedOrWaited, typename Call>
c10::intrusive_ptr<c10d::Work> stageAndCall(int rank, OpType type, Call call) {
  const BlockingRegion region;
  Staging staging;
  c10::intrusive_ptr<c10d::Work> work = call(staging);
  staging.close();
  return c10::make_intrusive<StagedOrWaited>(rank, type, std::move(work), std::move(staging));
}

// The same for a collective from inputs to outputs.
template <typename StagedOrWaited, typename Outputs, typename Inputs, typename... Rest>
c10::intrusive_ptr<c10d::Work> stageAndCall(
    c10d::Backend& gloo, OpType type,
    c10::intrusive_ptr<c10d::Work> (c10d::Backend::*collective)(Outputs&, Inputs&, Rest...),
    const Outputs& outputs, const Inputs& inputs, std::type_identity_t<Rest>... rest) {
  return stageAndCall<StagedOrWaited>(gloo.getRank(), type, [&](Staging& staging) {
    Outputs host_outputs = staging.out(outputs);
    Inputs host_inputs = staging.in(inputs);
    return (gloo.*collective)(host_outputs, host_inputs, rest...);
  });
}

}  // namespace

DeviceGloo::DeviceGloo(c10::intrusive_ptr<c10d::Backend> gloo)
    : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

c10::intrusive_ptr<c10d::Backend::Options> DeviceGloo::getBackendOptions() {
  return gloo_->getBackendOptions();
}

void DeviceGloo::setTimeout(std::chrono::milliseconds timeout) { gloo_->setTimeout(timeout); }

void DeviceGloo::setSequenceNumberForGroup() { gloo_->setSequenceNumberForGroup(); }

uint64_t DeviceGloo::getSequenceNumberForGroup() { return gloo_->getSequenceNumberForGroup(); }

bool DeviceGloo::supportsSplitting() const { return gloo_->supportsSplitting(); }

c10::intrusive_ptr<c10d::Backend> DeviceGloo::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  auto collective = gloo_->split(store, ranks, options);
  return collective == nullptr ? nullptr : c10::make_intrusive<DeviceGloo>(std::move(collective));
}

void DeviceGloo::abort() { gloo_->abort(); }

void DeviceGloo::shutdown() { gloo_->shutdown(); }

DeviceGloo::Work DeviceGloo::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return stageAndCall<StagedWork>(rank_, OpType::BROADCAST, [&](Staging& staging) {
    Tensors host = staging.inOut(tensors);
    return gloo_->broadcast(host, options);
  });
}

DeviceGloo::Work DeviceGloo::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return stageAndCall<StagedWork>(rank_, OpType::ALLREDUCE, [&](Staging& staging) {
    Tensors host = staging.inOut(tensors);
    return gloo_->allreduce(host, options);
  });
}

DeviceGloo::Work DeviceGloo::allreduce_coalesced(Tensors& tensors,
                                                 const c10d::AllreduceCoalescedOptions& options) {
  return stageAndCall<StagedWork>(rank_, OpType::ALLREDUCE_COALESCED, [&](Staging& staging) {
    Tensors host = staging.inOut(tensors);
    return gloo_->allreduce_coalesced(host, options);
  });
}

DeviceGloo::Work DeviceGloo::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return stageAndCall<StagedWork>(rank_, OpType::REDUCE, [&](Staging& staging) {
    // Gloo uses the tensors of the other ranks as scratch memory.
    Tensors host = options.rootRank == rank_ ? staging.inOut(tensors) : staging.in(tensors);
    return gloo_->reduce(host, options);
  });
}

DeviceGloo::Work DeviceGloo::allgather(Lists& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  return stageAndCall<StagedWork>(*gloo_, OpType::ALLGATHER, &Backend::allgather, outputs, inputs,
                                  options);
}

DeviceGloo::Work DeviceGloo::_allgather_base(Tensor& output, Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  return stageAndCall<StagedWork>(*gloo_, OpType::_ALLGATHER_BASE, &Backend::_allgather_base,
                                  output, input, options);
}

DeviceGloo::Work DeviceGloo::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  return stageAndCall<StagedWork>(*gloo_, OpType::ALLGATHER_COALESCED,
                                  &Backend::allgather_coalesced, outputs, inputs, options);
}

DeviceGloo::Work DeviceGloo::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return stageAndCall<StagedWork>(*gloo_, OpType::COALESCED,
                                  &Backend::allgather_into_tensor_coalesced, outputs, inputs,
                                  options);
}

DeviceGloo::Work DeviceGloo::gather(Lists& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) {
  return stageAndCall<StagedWork>(*gloo_, OpType::GATHER, &Backend::gather, outputs, inputs,
                                  options);
}

DeviceGloo::Work DeviceGloo::scatter(Tensors& outputs, Lists& inputs,
                                     const c10d::ScatterOptions& options) {
  return stageAndCall<StagedWork>(*gloo_, OpType::SCATTER, &Backend::scatter, outputs, inputs,
                                  options);
}

DeviceGloo::Work DeviceGloo::reduce_scatter(Tensors& outputs, Lists& inputs,
                                            const c10d::ReduceScatterOptions& options) {
  return stageAndCall<WaitedWork>(*gloo_, OpType::REDUCE_SCATTER, &Backend::reduce_scatter, outputs,
                                  inputs, options);
}

DeviceGloo::Work DeviceGloo::_reduce_scatter_base(Tensor& output, Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  return stageAndCall<WaitedWork>(*gloo_, OpType::_REDUCE_SCATTER_BASE,
                                  &Backend::_reduce_scatter_base, output, input, options);
}

DeviceGloo::Work DeviceGloo::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return stageAndCall<WaitedWork>(*gloo_, OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                                  &Backend::reduce_scatter_tensor_coalesced, outputs, inputs,
                                  options);
}

DeviceGloo::Work DeviceGloo::alltoall_base(Tensor& output, Tensor& input,
                                           std::vector<int64_t>& output_splits,
                                           std::vector<int64_t>& input_splits,
                                           const c10d::AllToAllOptions& options) {
  return stageAndCall<StagedWork>(*gloo_, OpType::ALLTOALL_BASE, &Backend::alltoall_base, output,
                                  input, output_splits, input_splits, options);
}

DeviceGloo::Work DeviceGloo::alltoall(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllToAllOptions& options) {
  return stageAndCall<StagedWork>(*gloo_, OpType::ALLTOALL, &Backend::alltoall, outputs, inputs,
                                  options);
}

DeviceGloo::Work DeviceGloo::send(Tensors& tensors, int destination, int tag) {
  return stageAndCall<WaitedWork>(rank_, OpType::SEND, [&](Staging& staging) {
    Tensors host = staging.in(tensors);
    return gloo_->send(host, destination, tag);
  });
}

DeviceGloo::Work DeviceGloo::recv(Tensors& tensors, int source, int tag) {
  return stageAndCall<WaitedWork>(rank_, OpType::RECV, [&](Staging& staging) {
    Tensors host = staging.out(tensors);
    return gloo_->recv(host, source, tag);
  });
}

DeviceGloo::Work DeviceGloo::recvAnysource(Tensors& tensors, int tag) {
  return stageAndCall<WaitedWork>(rank_, OpType::RECVANYSOURCE, [&](Staging& staging) {
    Tensors host = staging.out(tensors);
    return gloo_->recvAnysource(host, tag);
  });
}

DeviceGloo::Work DeviceGloo::barrier(const c10d::BarrierOptions& options) {
  return gloo_->barrier(options);
}

void DeviceGloo::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  gloo_->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace at::openreg
