// The arguments of a boxed call.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>

#include "torch_openreg/core/Functions.h"

namespace at::openreg {

// What the schema states about an argument or a result: that the call writes it, or that it is a
// view or has views among the results.
inline bool isWritten(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}
inline bool isViewed(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
}

// The arguments of the call: the last values on the stack.
inline c10::ArrayRef<c10::IValue> argumentsOnStack(const c10::FunctionSchema& schema,
                                                   const torch::jit::Stack& stack) {
  const size_t count = schema.arguments().size();
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count, count);
}

// Whether the argument is the operator's random number generator.
inline bool isGenerator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  return type->kind() == c10::TypeKind::GeneratorType ||
         (type->kind() == c10::TypeKind::OptionalType &&
          type->castRaw<c10::OptionalType>()->getElementType()->kind() ==
              c10::TypeKind::GeneratorType);
}

// Calls the function of `visitor` for arguments of this kind, and returns its result. Only this
// function distinguishes the kinds:
//   tensor(const Tensor&)                        a tensor, which may be undefined
//   tensors(c10::ArrayRef<c10::IValue>)          a list of tensors
//   optionalTensors(c10::ArrayRef<c10::IValue>)  the same, and elements may be None
//   device(c10::Device)                          an openreg device
//   generator(std::optional<Generator>)          also None, where the operator takes a generator
//   plain(const c10::IValue&)                    anything else; None for an omitted tensor
template <typename Visitor>
decltype(auto) visitArgument(const c10::IValue& value, const c10::Argument& argument,
                             Visitor&& visitor) {
  if (value.isTensor()) {
    return visitor.tensor(value.toTensor());
  }
  if (value.isTensorList()) {
    return visitor.tensors(value.toListRef());
  }
  if (value.isOptionalTensorList()) {
    return visitor.optionalTensors(value.toListRef());
  }
  if (value.isDevice() && value.toDevice().type() == c10::openreg::kDeviceType) {
    return visitor.device(value.toDevice());
  }
  if (value.isGenerator()) {
    return visitor.generator(std::optional<Generator>(value.toGenerator()));
  }
  if (value.isNone() && isGenerator(argument)) {
    return visitor.generator(std::optional<Generator>());
  }
  return visitor.plain(value);
}

// A visitor that calls `visit` with each tensor in order, including those in lists.
template <typename Visit>
struct TensorVisitor {
  const Visit& visit;

  void tensor(const Tensor& tensor) const { visit(tensor); }
  void tensors(c10::ArrayRef<c10::IValue> list) const {
    for (const c10::IValue& element : list) {
      if (element.isTensor()) {
        visit(element.toTensor());
      }
    }
  }
  void optionalTensors(c10::ArrayRef<c10::IValue> list) const { tensors(list); }
  void device(c10::Device /*device*/) const {}
  void generator(const std::optional<Generator>& /*generator*/) const {}
  void plain(const c10::IValue& /*value*/) const {}
};

template <typename Visit>
void visitTensors(const c10::IValue& value, const c10::Argument& argument, const Visit& visit) {
  visitArgument(value, argument, TensorVisitor<Visit>{visit});
}

}  // namespace at::openreg
