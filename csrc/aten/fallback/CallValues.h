// The arguments of a boxed call, with places instead of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>

namespace at::openreg {

struct CallValue {
  enum class Kind : uint8_t { Plain, Tensor, TensorList, OptionalTensorList };

  Kind kind;
  uint32_t count;     // how many places belong to the argument: 0, 1, or the length of a list
  c10::IValue plain;  // the value of Kind::Plain
};

// The place of an element of a list that is None.
constexpr size_t kNoTensor = static_cast<size_t>(-1);

// The arguments that `values` describe. `places` has, for each tensor argument and each element of
// a list in order, its index in `tensors`.
torch::jit::Stack argumentsOf(c10::ArrayRef<CallValue> values, c10::ArrayRef<size_t> places,
                              c10::ArrayRef<Tensor> tensors);

}  // namespace at::openreg
