#include "csrc/aten/fallback/CallValues.h"

#include <ATen/core/List.h>

#include <optional>
#include <utility>

namespace at::openreg {

torch::jit::Stack argumentsOf(c10::ArrayRef<CallValue> values, c10::ArrayRef<size_t> places,
                              c10::ArrayRef<Tensor> tensors) {
  torch::jit::Stack stack;
  stack.reserve(values.size());
  for (const CallValue& value : values) {
    const auto own = places.slice(0, value.count);
    places = places.slice(own.size());
    switch (value.kind) {
      case CallValue::Kind::Plain:
        stack.push_back(value.plain);
        break;
      case CallValue::Kind::Tensor:
        stack.emplace_back(tensors[own.front()]);
        break;
      case CallValue::Kind::TensorList: {
        c10::List<Tensor> list;
        list.reserve(own.size());
        for (const size_t place : own) {
          list.push_back(tensors[place]);
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case CallValue::Kind::OptionalTensorList: {
        c10::List<std::optional<Tensor>> list;
        list.reserve(own.size());
        for (const size_t place : own) {
          list.push_back(place == kNoTensor ? std::nullopt : std::optional<Tensor>(tensors[place]));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  return stack;
}

}  // namespace at::openreg
