// Reductions, expressed by those that Gloo supports.
//
// Gloo has no AVG of integers, no PREMUL_SUM and no bool. AVG is computed as a sum and a division,
// PREMUL_SUM as a multiplication and a sum. Bools are bytes of 0 and 1: their sum is "or", the
// maximum of the bytes, and their product is "and", the minimum. Complex numbers are pairs.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc/extras/distributed/transport/CollectiveSignature.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {

class Reduction {
 public:
  // Errors: TypeError for dtypes that NCCL does not reduce, or not by this operation; ValueError
  // for an invalid reduction.
  Reduction(CollectiveKind kind, const c10d::ReduceOp& op, c10::ScalarType dtype, int group_size);

  // The operation that Gloo runs.
  c10d::ReduceOp wireOp() const { return wire_op_; }

  // A packed CPU tensor as Gloo receives it: one dimension, a dtype that Gloo supports.
  Tensor wireView(const Tensor& plain) const;

  // Whether every order of the ranks gives the same bits.
  bool isOrderFree() const;
  // For a reduction that is order-free, on tensors from wireView(): stores the result of both in
  // `sum`.
  void combine(Tensor& sum, const Tensor& other) const;

  // PREMUL_SUM changes the input of each rank in place; AVG changes the result.
  bool changesInput() const { return op_ == c10d::ReduceOp::PREMUL_SUM; }
  void prepare(const Tensor& plain) const;
  void complete(const Tensor& plain) const;

  // The factor of a PREMUL_SUM if it is a device tensor; undefined otherwise.
  const Tensor& factorTensor() const { return factor_tensor_; }
  void forgetFactorTensor() { factor_tensor_.reset(); }

  int op() const { return op_; }

 private:
  c10d::ReduceOp::RedOpType op_;
  c10d::ReduceOp::RedOpType wire_op_;
  c10::ScalarType dtype_;
  int group_size_;
  double factor_ = 1;
  Tensor factor_tensor_;
  TensorAlias factor_alias_;
};

}  // namespace at::openreg
