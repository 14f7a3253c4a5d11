// The properties of a call that determine its plan.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace at::openreg {

// Note [Signatures]
// Calls with the same signature have results of the same sizes, strides and types, and the host's
// checks of their arguments pass or fail alike. A signature consists of
//   - the operator and the environment of the call (Note [The environment of a kernel]);
//   - for each tensor, its metadata, which tensors are the same, and how their memory overlaps; for
//     consecutive tensors of a list with equal metadata, their number;
//   - integers, flags and strings by value;
//   - numbers by their class and by how they compare with the number before (Note [Classes of
//     numbers]); by value where they determine the size of results;
//   - host tensors without dimensions, which are numbers as well, by metadata and class.
class CallSignature {
 public:
  c10::ArrayRef<int64_t> words() const { return words_; }
  size_t hash() const { return hash_; }

  class Builder;

 private:
  c10::SmallVector<int64_t, 64> words_;
  size_t hash_ = 0;
};

// Describes the arguments of a call, which are added in order. `place` is that of the tensor among
// the different tensors of the call; a tensor that is not new was added before.
class CallSignature::Builder {
 public:
  using Tensors = c10::ArrayRef<const Tensor*>;

  // `op` identifies the operator. Without `can_plan`, the builder describes nothing.
  // `counts_with_numbers`: see FallbackOperator.h.
  Builder(const void* op, bool can_plan, bool counts_with_numbers);
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // `earlier` are the different tensors that were added before.
  void addTensor(const Tensor& tensor, bool is_new, size_t place, Tensors earlier);

  // A list: its length, its elements, its end.
  void beginList(size_t size);
  void addElement(const Tensor& tensor, bool is_new, size_t place);
  void addNone();
  void endList();

  void addDevice(c10::Device device);
  void addGenerator();
  void addPlain(const c10::IValue& value, const c10::Argument& argument);

  // The signature; null without `can_plan`, or if it cannot describe the arguments: CPU tensors
  // with dimensions, layouts other than strided, symbolic sizes.
  const CallSignature* finish();

 private:
  void addMetadata(const Tensor& tensor, bool is_new, size_t place);
  bool isLikeTheOneBefore(const Tensor& tensor) const;
  void addOverlaps(const Tensor& tensor, Tensors earlier);
  void endRow();
  void addNumber(const Scalar& number);
  void addNumber(const c10::IValue& number);
  void addOrder(const c10::IValue& number);

  CallSignature signature_;
  c10::SmallVector<int64_t, 64>& words_;
  const bool counts_with_numbers_;
  bool is_valid_;
  std::optional<double> previous_;
  // Of tensors in a row that are alike, the first one is described, from this word on, and the
  // others are counted.
  size_t described_ = 0;
  int64_t alike_ = 0;
};

}  // namespace at::openreg
