#include "csrc/extras/distributed/CommunicationRecord.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace at::openreg {
namespace {

using c10d::OpType;

struct RecordNames {
  const char* collective;  // its name in the metadata
  const char* title;       // the name of the second event
};

RecordNames recordNamesOf(OpType type) {
  switch (type) {
    case OpType::BROADCAST:
      return {"broadcast", "broadcast"};
    case OpType::ALLREDUCE:
      return {"allreduce", "all_reduce"};
    case OpType::ALLREDUCE_COALESCED:
      return {"allreduce_coalesced", "allreduce_coalesced"};
    case OpType::REDUCE:
      return {"reduce", "reduce"};
    case OpType::ALLGATHER:
      return {"all_gather", "all_gather"};
    case OpType::_ALLGATHER_BASE:
      return {"_allgather_base", "_all_gather_base"};
    case OpType::ALLGATHER_COALESCED:
      return {"allgather_coalesced", "all_gather_coalesced"};
    case OpType::COALESCED:
      return {"allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced"};
    case OpType::GATHER:
      return {"gather", "gather"};
    case OpType::SCATTER:
      return {"scatter", "scatter"};
    case OpType::REDUCE_SCATTER:
      return {"reduce_scatter", "reduce_scatter"};
    case OpType::_REDUCE_SCATTER_BASE:
      return {"_reduce_scatter_base", "_reduce_scatter_base"};
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return {"reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced"};
    case OpType::ALLTOALL_BASE:
      return {"all_to_allv", "all_to_all"};
    case OpType::ALLTOALL:
      return {"all_to_all", "all_to_all"};
    case OpType::SEND:
      return {"send", "send"};
    case OpType::RECV:
      return {"recv", "recv"};
    case OpType::RECVANYSOURCE:
      return {"recvAnySource", "recv_any_source"};
    case OpType::BARRIER:
      return {"barrier", "barrier"};
    default:
      return {"unknown", "unknown"};
  }
}

struct MessageSizes {
  int64_t in = 0;
  int64_t out = 0;
};

// The tensors that collectives read and write, and how many elements they have.
struct Sides {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  MessageSizes sizes;
};

Sides sidesOf(const std::vector<Collective>& collectives, int group_size) {
  Sides sides;
  for (const Collective& collective : collectives) {
    MessageSizes own;
    const size_t first_input = sides.inputs.size();
    const size_t first_output = sides.outputs.size();
    for (const Access& access : collective.accesses) {
      if (access.isRead()) {
        sides.inputs.push_back(access.tensor);
        own.in += access.tensor.numel();
      }
      if (access.isWritten()) {
        sides.outputs.push_back(access.tensor);
        own.out += access.tensor.numel();
      }
    }
    // On ranks other than the root, one side is empty; its size follows from the other side.
    if (sides.outputs.size() == first_output) {
      own.out = collective.signature.kind == CollectiveKind::Gather ? own.in * group_size : own.in;
    } else if (sides.inputs.size() == first_input) {
      own.in =
          collective.signature.kind == CollectiveKind::Scatter ? own.out * group_size : own.out;
    }
    sides.sizes.in += own.in;
    sides.sizes.out += own.out;
  }
  return sides;
}

std::tuple<std::string, std::string> nameAndDescription(const GroupState::Label& label) {
  return {label.name, label.description};
}

}  // namespace

c10::intrusive_ptr<c10d::Work> recordCommunication(const GroupState& state, const char* backend,
                                                   Request request, const EnqueueRequest& enqueue) {
  const GroupState::Label label = state.label();
  const CollectiveSignature& signature = request.collectives.front().signature;
  const RecordNames names = recordNamesOf(request.type);
  const bool is_message = !request.is_agreed;
  const int peer = is_message ? std::get<0>(request.channels.front()) : signature.root;
  auto [inputs, outputs, sizes] = sidesOf(request.collectives, state.size());
  if (inputs.empty()) {
    inputs = outputs;
  } else if (outputs.empty()) {
    outputs = inputs;
  }
  std::string title = c10::str(backend, ":", names.title);
  if (request.type == OpType::SEND || request.type == OpType::RECV) {
    title += c10::str(" ", state.rank(), request.type == OpType::SEND ? "->" : "<-", peer);
  }
  RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
      std::make_tuple(static_cast<int64_t>(state.lastNumber() + 1), is_message),
      nameAndDescription(label), inputs, outputs, peer >= 0 ? peer : state.rank(), names.collective,
      sizes.in, sizes.out, signature.dtype, request.input_splits, request.output_splits,
      label.first_rank, label.rank_stride, state.size(), request.is_async);
  at::RecordFunction event(at::RecordScope::USER_SCOPE);
  if (event.isActive()) {
    event._setAsync();
    const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
    event.before(title, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
  }
  return enqueue(std::move(request));
}

void recordWait(const GroupState& state, uint64_t number, bool is_message,
                const std::function<void()>& wait) {
  const GroupState::Label label = state.label();
  RECORD_PARAM_COMMS(std::make_tuple(static_cast<int64_t>(number), is_message),
                     nameAndDescription(label), state.rank(), "wait", 0, 0, at::kByte,
                     std::vector<int64_t>(), std::vector<int64_t>(), label.first_rank,
                     label.rank_stride, state.size());
  wait();
}

}  // namespace at::openreg
