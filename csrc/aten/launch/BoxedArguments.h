// The arguments of a boxed call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

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

// Whether the argument is of this type, or an optional of it.
inline bool isOfKind(const c10::Argument& argument, c10::TypeKind kind) {
  const c10::TypePtr& type = argument.real_type();
  return type->kind() == kind ||
         (type->kind() == c10::TypeKind::OptionalType &&
          type->castRaw<c10::OptionalType>()->getElementType()->kind() == kind);
}

// Whether the argument is the operator's random number generator.
inline bool isGenerator(const c10::Argument& argument) {
  return isOfKind(argument, c10::TypeKind::GeneratorType);
}

// Calls `visit` with each tensor of the argument, including the elements of a list.
template <typename Visit>
void visitTensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit(element.toTensor());
      }
    }
  }
}

}  // namespace at::openreg
