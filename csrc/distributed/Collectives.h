// Each collective as a part of an operation: checked, and ready for the worker.
//
// Of every function below:
//   Errors   At the call: ValueError for tensors that do not fit the collective, TypeError for
//            dtypes that NCCL does not take, either. `Checked` says which.
//   Layouts  Tensors are non-overlapping and dense, as NCCL has it, and travel in the order of
//            their elements, whatever their strides are.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "csrc/distributed/Operation.h"

namespace at::openreg {

// The group as a collective sees it.
struct Membership {
  int rank;
  int size;
};

using Tensors = std::vector<Tensor>;

// The one tensor of a list of one, checked.
const Tensor& singleTensor(CollectiveKind kind, const Tensors& tensors);

Part allReduce(Membership group, const Tensor& tensor, const c10d::ReduceOp& op);
Part broadcast(Membership group, const Tensor& tensor, int64_t root);
Part reduce(Membership group, const Tensor& tensor, const c10d::ReduceOp& op, int64_t root);

// Into a tensor for each rank, which may have sizes of their own.
Part allGather(Membership group, const Tensors& outputs, const Tensor& input);
Part allGatherIntoTensor(Membership group, const Tensor& output, const Tensor& input);
// `outputs` is empty but on the root.
Part gather(Membership group, const Tensors& outputs, const Tensor& input, int64_t root);
// `inputs` is empty but on the root.
Part scatter(Membership group, const Tensor& output, const Tensors& inputs, int64_t root);

Part reduceScatter(Membership group, const Tensor& output, const Tensors& inputs,
                   const c10d::ReduceOp& op);
Part reduceScatterTensor(Membership group, const Tensor& output, const Tensor& input,
                         const c10d::ReduceOp& op);

Part allToAll(Membership group, const Tensors& outputs, const Tensors& inputs);
// Splits are of the first dimension; empty: equal ones.
Part allToAllSingle(Membership group, const Tensor& output, const Tensor& input,
                    const std::vector<int64_t>& output_splits,
                    const std::vector<int64_t>& input_splits);

// Nothing but the agreement.
Part barrier(CollectiveKind kind);

// `tag` is the user's. For receive(), a negative rank means anybody.
Part send(Membership group, const Tensor& tensor, int destination, int tag);
Part receive(Membership group, const Tensor& tensor, int source, int tag);
// What a rank sends to itself, in a batch that receives it as well.
Part messageToSelf(const Tensor& sent, const Tensor& received);

}  // namespace at::openreg
