#include "csrc/extras/distributed/ProcessGroupOCCL.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "csrc/core/BlockingRegion.h"
#include "csrc/extras/distributed/CommunicationRecord.h"
#include "csrc/extras/distributed/LockWithoutGil.h"
#include "csrc/extras/distributed/MessageFormat.h"
#include "csrc/extras/distributed/transport/AbsentPeers.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"

namespace at::openreg {
namespace {

using c10::openreg::BlockingRegion;
using c10::openreg::kDeviceType;
using c10::openreg::Lock;
using c10d::OpType;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Work = c10::intrusive_ptr<c10d::Work>;

ProcessGroupOCCL::GlooFactory& glooFactory() {
  // Leaked, because it holds a Python object.
  static auto* factory = new ProcessGroupOCCL::GlooFactory();
  return *factory;
}

// How often shutdown() queries the streams; under some schedules, they advance only when queried.
constexpr milliseconds kShutdownInterval{20};

// How long shutdown() waits for the Gloo threads of other ranks. Milliseconds suffice unless a
// machine is overloaded; a connection to a machine that is gone can take the whole time.
constexpr milliseconds kGoodbyeTime{60'000};

// The part of the store that the ranks of a group share.
c10::intrusive_ptr<c10d::Store> storeOfRanks(c10::intrusive_ptr<c10d::Store> store) {
  // Workers restarted by torchrun find the store of the previous run, with addresses that are no
  // longer in use.
  const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return c10::make_intrusive<c10d::PrefixStore>(
      c10::str("restart", restarts == nullptr ? "0" : restarts),
      c10::make_intrusive<c10d::PrefixStore>("occl", std::move(store)));
}

// Connects the ranks by Gloo, after it has checked that they use one message format.
c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          int size, const ProcessGroupOCCL::Options& options) {
  if (arePeersAbsent()) {
    auto peers = c10::make_intrusive<AbsentPeers>(store, rank, size);
    peers->getBackendOptions()->global_ranks_in_group = options.global_ranks_in_group;
    return peers;
  }
  agreeOnMessageFormat(store, rank, size, options.timeout);
  return glooFactory()(store, rank, size, options.timeout);
}

// Unwraps the list of lists of a call that supports several devices per process; only one is
// allowed.
template <typename List>
const List& onlyList(CollectiveKind kind, const std::vector<List>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, nameOf(kind), ": expected one list of tensors, got ",
                    lists.size());
  return lists.front();
}

void checkSameCount(CollectiveKind kind, size_t outputs, size_t inputs) {
  TORCH_CHECK_VALUE(outputs == inputs && outputs > 0, nameOf(kind),
                    ": expected as many outputs as inputs, and at least one, got ", outputs,
                    " and ", inputs);
}

void checkType(c10::Device device) {
  TORCH_CHECK_VALUE(device.type() == kDeviceType, ProcessGroupOCCL::backendName(),
                    ": expected a device of type ", kDeviceType, ", got ", device);
}

}  // namespace

const char* ProcessGroupOCCL::backendName() { return c10::openreg::servesCuda() ? "nccl" : "occl"; }

void ProcessGroupOCCL::setGlooFactory(GlooFactory factory) { glooFactory() = std::move(factory); }

ProcessGroupOCCL::ProcessGroupOCCL(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      state_(std::make_shared<GroupState>(rank, size, options_->timeout)),
      transport_(std::make_shared<Transport>(connect(storeOfRanks(store), rank, size, *options_))) {
  state_->setTransport(transport_);
  if (c10::openreg::servesCuda()) {
    communicators_.emplace(storeOfRanks(std::move(store)), rank);
  }
  if (!options_->group_name.empty()) {
    state_->setName(options_->group_name);
  }
  state_->setGlobalRanks(options_->global_ranks_in_group);
}

ProcessGroupOCCL::~ProcessGroupOCCL() {
  // Running operations keep the state and the connections alive until they end.
  const BlockingRegion region;
  const Lock lock(mutex_);
  engines_.clear();
}

void ProcessGroupOCCL::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  state_->setTimeout(timeout);
}

void ProcessGroupOCCL::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  state_->setName(uid);
}

void ProcessGroupOCCL::addEphemeralTimeout(milliseconds timeout) {
  state_->extendTimeouts(timeout);
}

template <typename CallOptions>
Request ProcessGroupOCCL::makeRequest(OpType type, const CallOptions& options,
                                      std::vector<Tensor> outputs,
                                      std::vector<Collective> collectives) const {
  Request request{collectives.front().signature.kind, type};
  request.is_async = options.asyncOp;
  request.waits_on_host = type == OpType::BARRIER;
  request.timeout = options.timeout.count() > 0 ? options.timeout : state_->timeout();
  request.outputs = std::move(outputs);
  request.collectives = std::move(collectives);
  return request;
}

// init_process_group() without a backend's name, or with several, makes Gloo the group's default
// backend, or leaves none. Calls on the group would then not reach this backend.
void ProcessGroupOCCL::repairDefaultBackend() {
  state_->setDescription(pg_desc_);
  try {
    const auto process_group = c10d::resolve_process_group(pg_uid_);
    const auto type = process_group->getBackendType();
    if ((type == c10d::ProcessGroup::BackendType::GLOO ||
         type == c10d::ProcessGroup::BackendType::UNDEFINED) &&
        process_group->getDeviceTypes().size() > 0) {
      process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    }
  } catch (const c10::Error&) {
    // The backend is used without a process group.
  }
}

Engine& ProcessGroupOCCL::engineFor(c10::Device device) {
  checkType(device);
  const auto index = device.has_index() ? device.index() : c10::openreg::current_device();
  const LockWithoutGil lock(mutex_);
  std::unique_ptr<Engine>& engine = engines_[index];
  if (engine == nullptr) {
    engine = std::make_unique<Engine>(state_, transport_, order_, c10::Device(kDeviceType, index),
                                      options_->is_high_priority_stream ? -1 : 0);
  }
  return *engine;
}

Work ProcessGroupOCCL::submit(Request request) {
  std::call_once(is_repaired_, [&] { repairDefaultBackend(); });
  if (isRecording()) {
    return recordCommunication(*state_, backendName(), std::move(request),
                               [&](Request recorded) { return enqueue(std::move(recorded)); });
  }
  return enqueue(std::move(request));
}

Work ProcessGroupOCCL::enqueue(Request request) {
  const c10::Device device = request.collectives.front().device;
  {
    const LockWithoutGil lock(mutex_);
    for (CurrentBatch& current : batches_) {
      if (current.owner == std::this_thread::get_id()) {
        TORCH_CHECK_VALUE(!current.device.has_value() || *current.device == device,
                          nameOf(request.kind), ": expected tensors of one device in a batch, got ",
                          *current.device, " and ", device);
        checkDevice(request, device);
        current.device = device;
        auto work =
            c10::make_intrusive<BatchedWork>(rank_, request.type, current.batch, request.outputs);
        current.requests.push_back(std::move(request));
        return work;
      }
    }
  }
  joinCommunicators(device, request);
  return engineFor(device).enqueue(std::move(request));
}

void ProcessGroupOCCL::joinCommunicators(c10::Device device, const Request& request) {
  if (!communicators_.has_value()) {
    return;
  }
  try {
    if (request.is_agreed) {
      communicators_->join(device);
    }
    for (const auto& [peer, is_sent, tag] : request.channels) {
      communicators_->joinPair(device, peer);
    }
  } catch (const c10::DistBackendError& error) {
    state_->fail(error.what_without_backtrace());
    throw;
  }
}

void ProcessGroupOCCL::startCoalescing() {
  const LockWithoutGil lock(mutex_);
  for (const CurrentBatch& current : batches_) {
    TORCH_CHECK(current.owner != std::this_thread::get_id(),
                "start_coalescing: expected no batch to be open, got one");
  }
  batches_.push_back(
      {std::this_thread::get_id(), std::nullopt, {}, {}, std::make_shared<BatchedWork::Batch>()});
}

Work ProcessGroupOCCL::endCoalescing() {
  CurrentBatch current;
  {
    const LockWithoutGil lock(mutex_);
    const auto it = std::find_if(batches_.begin(), batches_.end(), [](const CurrentBatch& one) {
      return one.owner == std::this_thread::get_id();
    });
    TORCH_CHECK(it != batches_.end(), "end_coalescing: expected an open batch, got none");
    current = std::move(*it);
    batches_.erase(it);
  }
  pairMessagesToSelf(current);
  // Messages and collectives are launched separately: other ranks may have no part in the messages.
  c10::intrusive_ptr<OcclWork> work;
  for (const bool is_agreed : {false, true}) {
    std::optional<Request> merged;
    for (Request& request : current.requests) {
      if (request.is_agreed != is_agreed) {
        continue;
      }
      if (!merged.has_value()) {
        merged = std::move(request);
        continue;
      }
      merged->kind = CollectiveKind::Coalesced;
      merged->type = OpType::COALESCED;
      merged->is_async = merged->is_async || request.is_async;
      merged->waits_on_host = merged->waits_on_host || request.waits_on_host;
      merged->timeout = std::max(merged->timeout, request.timeout);
      std::move(request.collectives.begin(), request.collectives.end(),
                std::back_inserter(merged->collectives));
      merged->outputs.insert(merged->outputs.end(), request.outputs.begin(), request.outputs.end());
      merged->channels.insert(merged->channels.end(), request.channels.begin(),
                              request.channels.end());
    }
    if (merged.has_value()) {
      joinCommunicators(*current.device, *merged);
      auto next = engineFor(*current.device).enqueue(std::move(*merged));
      if (work != nullptr) {
        next->also(std::move(work));
      }
      work = std::move(next);
    }
  }
  current.batch->work = work;
  if (work == nullptr) {
    // An empty batch is complete.
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(std::vector<Tensor>{}));
    return c10d::Work::create_from_future(future);
  }
  return work;
}

Work ProcessGroupOCCL::broadcast(std::vector<Tensor>& tensors,
                                 const c10d::BroadcastOptions& options) {
  const Tensor& tensor = singleTensor(CollectiveKind::Broadcast, tensors);
  return submit(makeRequest(OpType::BROADCAST, options, tensors,
                            {openreg::broadcast(group(), tensor, options.rootRank)}));
}

Work ProcessGroupOCCL::allreduce(std::vector<Tensor>& tensors,
                                 const c10d::AllreduceOptions& options) {
  const Tensor& tensor = singleTensor(CollectiveKind::AllReduce, tensors);
  return submit(makeRequest(OpType::ALLREDUCE, options, tensors,
                            {allReduce(group(), tensor, options.reduceOp)}));
}

Work ProcessGroupOCCL::allreduce_coalesced(std::vector<Tensor>& tensors,
                                           const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce: expected tensors, got none");
  std::vector<Collective> collectives;
  for (const Tensor& tensor : tensors) {
    collectives.push_back(allReduce(group(), tensor, options.reduceOp));
  }
  return submit(makeRequest(OpType::ALLREDUCE_COALESCED, options, tensors, std::move(collectives)));
}

Work ProcessGroupOCCL::reduce(std::vector<Tensor>& tensors, const c10d::ReduceOptions& options) {
  const Tensor& tensor = singleTensor(CollectiveKind::Reduce, tensors);
  return submit(
      makeRequest(OpType::REDUCE, options, tensors,
                  {openreg::reduce(group(), tensor, options.reduceOp, options.rootRank)}));
}

Work ProcessGroupOCCL::allgather(std::vector<std::vector<Tensor>>& outputs,
                                 std::vector<Tensor>& inputs,
                                 const c10d::AllgatherOptions& options) {
  const Tensor& input = singleTensor(CollectiveKind::AllGather, inputs);
  const std::vector<Tensor>& list = onlyList(CollectiveKind::AllGather, outputs);
  return submit(makeRequest(OpType::ALLGATHER, options, list, {allGather(group(), list, input)}));
}

Work ProcessGroupOCCL::_allgather_base(Tensor& output, Tensor& input,
                                       const c10d::AllgatherOptions& options) {
  return submit(makeRequest(OpType::_ALLGATHER_BASE, options, {output},
                            {allGatherIntoTensor(group(), output, input)}));
}

Work ProcessGroupOCCL::allgather_coalesced(std::vector<std::vector<Tensor>>& outputs,
                                           std::vector<Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) {
  constexpr auto kKind = CollectiveKind::AllGather;
  // One list for each rank, with one tensor for each input.
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), nameOf(kKind),
                    ": expected a list of outputs for each of ", size_, " ranks, got ",
                    outputs.size());
  std::vector<Tensor> all;
  for (const std::vector<Tensor>& list : outputs) {
    checkSameCount(kKind, list.size(), inputs.size());
    all.insert(all.end(), list.begin(), list.end());
  }
  std::vector<Collective> collectives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensor> list;
    for (const std::vector<Tensor>& of_rank : outputs) {
      list.push_back(of_rank[i]);
    }
    collectives.push_back(allGather(group(), list, inputs[i]));
  }
  return submit(
      makeRequest(OpType::ALLGATHER_COALESCED, options, std::move(all), std::move(collectives)));
}

Work ProcessGroupOCCL::allgather_into_tensor_coalesced(std::vector<Tensor>& outputs,
                                                       std::vector<Tensor>& inputs,
                                                       const c10d::AllgatherOptions& options) {
  checkSameCount(CollectiveKind::AllGather, outputs.size(), inputs.size());
  std::vector<Collective> collectives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    collectives.push_back(allGatherIntoTensor(group(), outputs[i], inputs[i]));
  }
  return submit(makeRequest(OpType::COALESCED, options, outputs, std::move(collectives)));
}

Work ProcessGroupOCCL::gather(std::vector<std::vector<Tensor>>& outputs,
                              std::vector<Tensor>& inputs, const c10d::GatherOptions& options) {
  constexpr auto kKind = CollectiveKind::Gather;
  const Tensor& input = singleTensor(kKind, inputs);
  const bool is_root = options.rootRank == rank_;
  // On ranks without outputs, c10d passes an empty list or a list with an empty list.
  const std::vector<Tensor> list =
      !is_root && outputs.empty() ? std::vector<Tensor>{} : onlyList(kKind, outputs);
  return submit(makeRequest(OpType::GATHER, options, list,
                            {openreg::gather(group(), list, input, options.rootRank)}));
}

Work ProcessGroupOCCL::scatter(std::vector<Tensor>& outputs,
                               std::vector<std::vector<Tensor>>& inputs,
                               const c10d::ScatterOptions& options) {
  constexpr auto kKind = CollectiveKind::Scatter;
  const Tensor& output = singleTensor(kKind, outputs);
  const bool is_root = options.rootRank == rank_;
  const std::vector<Tensor> list =
      !is_root && inputs.empty() ? std::vector<Tensor>{} : onlyList(kKind, inputs);
  return submit(makeRequest(OpType::SCATTER, options, outputs,
                            {openreg::scatter(group(), output, list, options.rootRank)}));
}

Work ProcessGroupOCCL::reduce_scatter(std::vector<Tensor>& outputs,
                                      std::vector<std::vector<Tensor>>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  const Tensor& output = singleTensor(CollectiveKind::ReduceScatter, outputs);
  const std::vector<Tensor>& list = onlyList(CollectiveKind::ReduceScatter, inputs);
  return submit(makeRequest(OpType::REDUCE_SCATTER, options, outputs,
                            {reduceScatter(group(), output, list, options.reduceOp)}));
}

Work ProcessGroupOCCL::_reduce_scatter_base(Tensor& output, Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  return submit(makeRequest(OpType::_REDUCE_SCATTER_BASE, options, {output},
                            {reduceScatterTensor(group(), output, input, options.reduceOp)}));
}

Work ProcessGroupOCCL::reduce_scatter_tensor_coalesced(std::vector<Tensor>& outputs,
                                                       std::vector<Tensor>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  checkSameCount(CollectiveKind::ReduceScatter, outputs.size(), inputs.size());
  std::vector<Collective> collectives;
  for (size_t i = 0; i < inputs.size(); ++i) {
    collectives.push_back(reduceScatterTensor(group(), outputs[i], inputs[i], options.reduceOp));
  }
  return submit(makeRequest(OpType::REDUCE_SCATTER_TENSOR_COALESCED, options, outputs,
                            std::move(collectives)));
}

Work ProcessGroupOCCL::alltoall_base(Tensor& output, Tensor& input,
                                     std::vector<int64_t>& output_splits,
                                     std::vector<int64_t>& input_splits,
                                     const c10d::AllToAllOptions& options) {
  Request request =
      makeRequest(OpType::ALLTOALL_BASE, options, {output},
                  {allToAllSingle(group(), output, input, output_splits, input_splits)});
  request.input_splits = input_splits;
  request.output_splits = output_splits;
  return submit(std::move(request));
}

Work ProcessGroupOCCL::alltoall(std::vector<Tensor>& outputs, std::vector<Tensor>& inputs,
                                const c10d::AllToAllOptions& options) {
  std::vector<Collective> collectives{allToAll(group(), outputs, inputs)};
  return submit(makeRequest(OpType::ALLTOALL, options, outputs, std::move(collectives)));
}

Work ProcessGroupOCCL::submitMessage(OpType type, std::vector<Tensor>& tensors,
                                     Collective collective, std::vector<ChannelKey> channels) {
  Request request{collective.signature.kind, type};
  request.is_agreed = false;
  request.timeout = state_->timeout();
  request.collectives = {std::move(collective)};
  request.outputs = tensors;
  request.channels = std::move(channels);
  return submit(std::move(request));
}

Work ProcessGroupOCCL::submitToSelf(OpType type, const Tensor& tensor, int tag) {
  const LockWithoutGil lock(mutex_);
  for (CurrentBatch& current : batches_) {
    if (current.owner == std::this_thread::get_id()) {
      checkTensor(type == OpType::SEND ? CollectiveKind::Send : CollectiveKind::Receive, tensor);
      current.to_self.push_back({type == OpType::SEND, tag, tensor});
      return c10::make_intrusive<BatchedWork>(rank_, type, current.batch,
                                              std::vector<Tensor>{tensor});
    }
  }
  return nullptr;
}

void ProcessGroupOCCL::pairMessagesToSelf(CurrentBatch& batch) {
  while (!batch.to_self.empty()) {
    const MessageToSelf first = batch.to_self.front();
    batch.to_self.erase(batch.to_self.begin());
    const auto other =
        std::find_if(batch.to_self.begin(), batch.to_self.end(), [&](const MessageToSelf& message) {
          return message.is_sent != first.is_sent && message.tag == first.tag;
        });
    TORCH_CHECK_VALUE(other != batch.to_self.end(), first.is_sent ? "send" : "recv",
                      ": expected a batch that both sends and receives each message of rank ",
                      rank_, " to itself, got one side with tag ", first.tag);
    const Tensor& sent = first.is_sent ? first.tensor : other->tensor;
    const Tensor& received = first.is_sent ? other->tensor : first.tensor;
    TORCH_CHECK_VALUE(
        batch.device.value_or(sent.device()) == sent.device() && sent.device() == received.device(),
        "send: expected tensors of one device in a batch, got ", sent.device(), " and ",
        received.device());
    batch.device = sent.device();
    Request request{CollectiveKind::Send, OpType::SEND};
    request.is_agreed = false;
    request.timeout = state_->timeout();
    request.collectives = {messageToSelf(sent, received)};
    request.outputs = {received};
    batch.requests.push_back(std::move(request));
    batch.to_self.erase(other);
  }
}

Work ProcessGroupOCCL::send(std::vector<Tensor>& tensors, int destination, int tag) {
  const Tensor& tensor = singleTensor(CollectiveKind::Send, tensors);
  if (destination == rank_) {
    if (Work work = submitToSelf(OpType::SEND, tensor, tag)) {
      return work;
    }
  }
  return submitMessage(OpType::SEND, tensors, openreg::send(group(), tensor, destination, tag),
                       {{destination, true, tag}});
}

Work ProcessGroupOCCL::recv(std::vector<Tensor>& tensors, int source, int tag) {
  const Tensor& tensor = singleTensor(CollectiveKind::Receive, tensors);
  if (source == rank_) {
    if (Work work = submitToSelf(OpType::RECV, tensor, tag)) {
      return work;
    }
  }
  return submitMessage(OpType::RECV, tensors, receive(group(), tensor, source, tag),
                       {{source, false, tag}});
}

Work ProcessGroupOCCL::recvAnysource(std::vector<Tensor>& tensors, int tag) {
  if (c10::openreg::servesCuda()) {
    return Backend::recvAnysource(tensors, tag);  // an error, as for NCCL
  }
  const Tensor& tensor = singleTensor(CollectiveKind::Receive, tensors);
  // Ordered with messages from every rank.
  std::vector<ChannelKey> channels;
  for (int source = -1; source < size_; ++source) {
    channels.emplace_back(source, false, tag);
  }
  return submitMessage(OpType::RECVANYSOURCE, tensors, receive(group(), tensor, -1, tag),
                       std::move(channels));
}

std::vector<c10::openreg::OpenRegStream> ProcessGroupOCCL::streams() {
  const LockWithoutGil lock(mutex_);
  std::vector<c10::openreg::OpenRegStream> streams;
  for (const auto& [index, engine] : engines_) {
    for (const auto& stream : engine->streams()) {
      streams.push_back(stream);
    }
  }
  return streams;
}

c10::Device ProcessGroupOCCL::deviceOf(const c10d::BarrierOptions& options) {
  if (options.device.has_value() && options.device->type() == kDeviceType &&
      options.device->has_index()) {
    return *options.device;
  }
  if (!options.device_ids.empty()) {
    c10::openreg::check_device_index(options.device_ids.front());
    return c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(options.device_ids.front()));
  }
  if (bound_device_id_.has_value()) {
    return *bound_device_id_;
  }
  {
    const LockWithoutGil lock(mutex_);
    if (!engines_.empty()) {
      return engines_.begin()->second->device();
    }
  }
  // Where the device type is CUDA, as for NCCL: ranks cannot share a device.
  return c10::Device(kDeviceType,
                     c10::openreg::servesCuda() ? deviceOfRank() : c10::openreg::current_device());
}

c10::DeviceIndex ProcessGroupOCCL::deviceOfRank() const {
  const auto& ranks = options_->global_ranks_in_group;
  const uint64_t rank = ranks.empty() ? rank_ : ranks[rank_];
  return static_cast<c10::DeviceIndex>(rank % c10::openreg::device_count());
}

Work ProcessGroupOCCL::barrier(const c10d::BarrierOptions& options) {
  return submit(makeRequest(OpType::BARRIER, options, {},
                            {openreg::barrier(CollectiveKind::Barrier, deviceOf(options))}));
}

void ProcessGroupOCCL::monitoredBarrier(const c10d::BarrierOptions& options,
                                        bool /*wait_all_ranks*/) {
  submit(makeRequest(OpType::BARRIER, options, {},
                     {openreg::barrier(CollectiveKind::MonitoredBarrier, deviceOf(options))}))
      ->wait();
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  ++split_count_;
  const auto it = std::find(ranks.begin(), ranks.end(), rank_);
  if (it == ranks.end()) {
    return nullptr;
  }
  auto own = c10::dynamic_intrusive_pointer_cast<Options>(options);
  if (own == nullptr) {
    own = c10::make_intrusive<Options>(options_->timeout);
    own->is_high_priority_stream = options_->is_high_priority_stream;
  }
  const BlockingRegion region;
  return c10::make_intrusive<ProcessGroupOCCL>(store, static_cast<int>(it - ranks.begin()),
                                               static_cast<int>(ranks.size()), std::move(own));
}

// The transport connects ranks and not devices. The device is not used here: as with NCCL, torch's
// module stays uninitialized, and DeviceMesh then selects the device of LOCAL_RANK.
void ProcessGroupOCCL::eagerConnectSingleDevice(at::Device device) {
  checkType(device);
  if (device.has_index()) {
    c10::openreg::check_device_index(device.index());
  }
}

c10d::ErrorType ProcessGroupOCCL::getError() {
  return state_->hasFailed() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void ProcessGroupOCCL::abort() {
  const BlockingRegion region;
  state_->fail(c10::str("abort() was called on rank ", rank_));
}

// Queries the streams, because under some schedules they advance only when queried.
bool ProcessGroupOCCL::waitForOperations(steady_clock::time_point deadline) {
  bool is_over = false;
  do {
    is_over = true;
    {
      const Lock lock(mutex_);
      for (const auto& [index, engine] : engines_) {
        is_over = engine->query() && is_over;
      }
    }
    is_over = state_->waitForPending(kShutdownInterval) && is_over;
  } while (!is_over && steady_clock::now() < deadline);
  return is_over;
}

void ProcessGroupOCCL::shutdown() {
  const BlockingRegion region;
  const auto deadline = steady_clock::now() + state_->timeout();
  bool is_over = waitForOperations(deadline);
  if (is_over) {
    {
      // With the lock held, every other thread has either enqueued its operation or will be
      // refused.
      const Lock lock(order_->mutex);
      state_->retire();
    }
    is_over = waitForOperations(deadline);
  }
  if (!is_over) {
    state_->fail("the group was destroyed before its operations ended");
    TORCH_WARN("destroy_process_group: ", state_->describe(),
               " has operations that did not end within its timeout; they were aborted");
    return;
  }
  const auto patience = std::min(state_->timeout(), kGoodbyeTime);
  const std::vector<int> silent = transport_->sayGoodbye(steady_clock::now() + patience);
  transport_->close();
  if (!silent.empty()) {
    TORCH_WARN("destroy_process_group: ", state_->describe(), " timed out after ", patience.count(),
               " ms waiting for ranks [", c10::Join(", ", silent),
               "] to receive its messages; its connections were closed");
  }
}

}  // namespace at::openreg
