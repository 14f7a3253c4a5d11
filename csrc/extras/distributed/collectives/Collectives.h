// The collectives. Each function checks its arguments and returns a collective for a worker to run.
//
// Unless a function says otherwise:
//   Errors   Raised at the call: ValueError for tensors that do not fit the collective, TypeError
//            for dtypes that NCCL does not support.
//   Tensors  Each is visited once: it is checked, and added to what the collective accesses.
//   Layouts  Tensors must be non-overlapping and dense, as with NCCL. They are sent in the order of
//            their elements, whatever their strides are.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "csrc/extras/distributed/Operation.h"

namespace at::openreg {

// The process group, as a collective needs it.
struct Membership {
  int rank;
  int size;
};

using Tensors = std::vector<Tensor>;

// Checks that a list holds exactly one tensor, and returns it.
const Tensor& singleTensor(CollectiveKind kind, const Tensors& tensors);

// Checks that a collective of this kind takes the tensor.
void checkTensor(CollectiveKind kind, const Tensor& tensor);

// The description of a collective with its first tensor, and another tensor of it, which must be on
// the same device.
Collective describe(CollectiveKind kind, const Tensor& tensor, Access::Use use);
void addTensor(Collective& collective, const Tensor& tensor, Access::Use use);

Collective allReduce(Membership group, const Tensor& tensor, const c10d::ReduceOp& op);
Collective broadcast(Membership group, const Tensor& tensor, int64_t root);
Collective reduce(Membership group, const Tensor& tensor, const c10d::ReduceOp& op, int64_t root);

// Gathers into one tensor for each rank; their sizes may differ.
Collective allGather(Membership group, const Tensors& outputs, const Tensor& input);
Collective allGatherIntoTensor(Membership group, const Tensor& output, const Tensor& input);
// `outputs` is empty except on the root.
Collective gather(Membership group, const Tensors& outputs, const Tensor& input, int64_t root);
// `inputs` is empty except on the root.
Collective scatter(Membership group, const Tensor& output, const Tensors& inputs, int64_t root);

Collective reduceScatter(Membership group, const Tensor& output, const Tensors& inputs,
                         const c10d::ReduceOp& op);
Collective reduceScatterTensor(Membership group, const Tensor& output, const Tensor& input,
                               const c10d::ReduceOp& op);

Collective allToAll(Membership group, const Tensors& outputs, const Tensors& inputs);
// Splits refer to the first dimension; empty means equal splits.
Collective allToAllSingle(Membership group, const Tensor& output, const Tensor& input,
                          const std::vector<int64_t>& output_splits,
                          const std::vector<int64_t>& input_splits);

// Exchanges headers only.
Collective barrier(CollectiveKind kind, c10::Device device);

// `tag` is the user's. For receive(), a negative rank means any rank.
Collective send(Membership group, const Tensor& tensor, int destination, int tag);
Collective receive(Membership group, const Tensor& tensor, int source, int tag);
// A message from a rank to itself, in a batch that both sends and receives it.
Collective messageToSelf(const Tensor& sent, const Tensor& received);

}  // namespace at::openreg
