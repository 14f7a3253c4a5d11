#include "csrc/extras/distributed/collectives/Reduction.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/ScalarType.h>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

bool isBitwise(RedOp op) {
  return op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
}

const char* nameOf(RedOp bitwise) {
  return bitwise == c10d::ReduceOp::BAND ? "BAND" : bitwise == c10d::ReduceOp::BOR ? "BOR" : "BXOR";
}

RedOp wireOpOf(RedOp op, bool is_bool) {
  switch (op) {
    case c10d::ReduceOp::AVG:
    case c10d::ReduceOp::PREMUL_SUM:
      return c10d::ReduceOp::SUM;
    case c10d::ReduceOp::SUM:
      return is_bool ? c10d::ReduceOp::MAX : op;
    case c10d::ReduceOp::PRODUCT:
      return is_bool ? c10d::ReduceOp::MIN : op;
    default:
      return op;
  }
}

}  // namespace

Reduction::Reduction(CollectiveKind kind, const c10d::ReduceOp& op, c10::ScalarType dtype,
                     int group_size)
    : op_(op.op_),
      wire_op_(wireOpOf(op.op_, dtype == kBool)),
      dtype_(dtype),
      group_size_(group_size) {
  const char* name = nameOf(kind);
  TORCH_CHECK_VALUE(op_ < c10d::ReduceOp::UNUSED, name, ": expected a ReduceOp, got ", int(op_));
  TORCH_CHECK_TYPE(!c10::isFloat8Type(dtype), name, ": expected a dtype that can be reduced, got ",
                   c10::getDtypeNames(dtype).first);
  const bool is_sum = wire_op_ == c10d::ReduceOp::SUM;
  TORCH_CHECK_TYPE(!c10::isComplexType(dtype) || is_sum, name,
                   ": expected SUM, AVG or PREMUL_SUM for complex numbers, got another ReduceOp");
  TORCH_CHECK_VALUE(!isBitwise(op_) || !c10::openreg::servesCuda(), "Cannot use ReduceOp.",
                    nameOf(op_), " with NCCL");
  TORCH_CHECK_TYPE(!isBitwise(op_) || c10::isIntegralType(dtype, /*includeBool=*/true), name,
                   ": expected an integral dtype for a bitwise ReduceOp, got ",
                   c10::getDtypeNames(dtype).first);
  TORCH_CHECK_TYPE(op_ != c10d::ReduceOp::AVG || dtype != kBool, name,
                   ": expected a ReduceOp other than AVG for bool");
  if (op_ != c10d::ReduceOp::PREMUL_SUM) {
    return;
  }
  TORCH_CHECK_TYPE(c10::isFloatingType(dtype) || c10::isComplexType(dtype), name,
                   ": expected a floating-point dtype for PREMUL_SUM, got ",
                   c10::getDtypeNames(dtype).first);
  const auto* supplement = dynamic_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, name, ": expected a factor for PREMUL_SUM, got none");
  factor_ = supplement->double_factor;
  if (supplement->tensor_factor.defined()) {
    factor_tensor_ = supplement->tensor_factor;
    // One element, as c10d checks, but of any shape.
    factor_alias_ = TensorAlias(isOpenReg(factor_tensor_) ? factor_tensor_.reshape({})
                                                          : factor_tensor_.cpu().reshape({}));
  }
}

Tensor Reduction::wireView(const Tensor& plain) const {
  const Tensor flat = plain.view({-1});
  if (dtype_ == kBool) {
    return flat.view(kByte);
  }
  return c10::isComplexType(dtype_) ? at::view_as_real(flat).view({-1}) : flat;
}

bool Reduction::isOrderFree() const {
  // Gloo's MIN and MAX of a NaN and a number depend on the order of the two.
  return c10::isIntegralType(dtype_, /*includeBool=*/true) ||
         (group_size_ <= 2 &&
          (wire_op_ == c10d::ReduceOp::SUM || wire_op_ == c10d::ReduceOp::PRODUCT));
}

void Reduction::combine(Tensor& sum, const Tensor& other) const {
  switch (wire_op_) {
    case c10d::ReduceOp::SUM:
      sum.add_(other);
      return;
    case c10d::ReduceOp::PRODUCT:
      sum.mul_(other);
      return;
    case c10d::ReduceOp::MIN:
      at::minimum_out(sum, sum, other);
      return;
    case c10d::ReduceOp::MAX:
      at::maximum_out(sum, sum, other);
      return;
    case c10d::ReduceOp::BAND:
      sum.bitwise_and_(other);
      return;
    case c10d::ReduceOp::BOR:
      sum.bitwise_or_(other);
      return;
    case c10d::ReduceOp::BXOR:
      sum.bitwise_xor_(other);
      return;
    default:
      TORCH_INTERNAL_ASSERT(false, "expected a reduction of Gloo, got ", int(wire_op_));
  }
}

void Reduction::prepare(const Tensor& plain) const {
  if (!changesInput()) {
    return;
  }
  if (factor_alias_.defined()) {
    plain.mul_(factor_alias_.tensor().to(plain.scalar_type()));
  } else {
    plain.mul_(factor_);
  }
}

void Reduction::complete(const Tensor& plain) const {
  if (op_ != c10d::ReduceOp::AVG) {
    return;
  }
  if (c10::isIntegralType(dtype_, /*includeBool=*/false)) {
    plain.div_(group_size_, "trunc");
  } else {
    plain.div_(group_size_);
  }
}

}  // namespace at::openreg
