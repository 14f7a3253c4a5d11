// Reductions in terms of those that Gloo has.
//
// Gloo has no AVG of whole numbers, no PREMUL_SUM and no type bool. AVG is a sum and a division,
// PREMUL_SUM a multiplication and a sum. Logical values are bytes of 0 and 1: their sum is "or",
// which is the largest of bytes, and their product "and", the smallest. Complex numbers are pairs.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc/distributed/Contract.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {

class Reduction {
 public:
  // Errors: TypeError for dtypes that NCCL does not reduce, or not so; ValueError for a reduction
  // that is none.
  Reduction(CollectiveKind kind, const c10d::ReduceOp& op, c10::ScalarType dtype, int group_size);

  // What Gloo reduces with.
  c10d::ReduceOp wireOp() const { return wire_op_; }

  // A plain CPU tensor, as Gloo sees it: one dimension, a dtype of its own.
  Tensor wireView(const Tensor& plain) const;

  // Whether every order of the ranks gives the same bits.
  bool isOrderFree() const;
  // Of such a reduction, on what wireView() returns: `sum` becomes that of both.
  void combine(Tensor& sum, const Tensor& other) const;

  // Applied to what a rank puts in, in place, and to the result.
  bool changesInput() const { return op_ == c10d::ReduceOp::PREMUL_SUM; }
  void prepare(const Tensor& plain) const;
  void complete(const Tensor& plain) const;

  // The factor of a PREMUL_SUM that is a tensor of the device; undefined without.
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
