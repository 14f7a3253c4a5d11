// The tensors among the arguments of a boxed call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace at::openreg {

// The arguments of the call, the last values on the stack.
inline c10::ArrayRef<c10::IValue> argumentsOnStack(const c10::FunctionSchema& schema,
                                                   const torch::jit::Stack& stack) {
  const size_t count = schema.arguments().size();
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count, count);
}

// Calls `visit` with each tensor, also those in lists, in order.
template <typename Visit>
void visitTensors(c10::ArrayRef<c10::IValue> arguments, const Visit& visit) {
  for (const c10::IValue& value : arguments) {
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
}

// Whether the operator draws from a generator there.
inline bool isGenerator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  return type->kind() == c10::TypeKind::GeneratorType ||
         (type->kind() == c10::TypeKind::OptionalType &&
          type->castRaw<c10::OptionalType>()->getElementType()->kind() ==
              c10::TypeKind::GeneratorType);
}

}  // namespace at::openreg
