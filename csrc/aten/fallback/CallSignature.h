// What distinguishes one call of an operator from another, before either has run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/aten/fallback/FallbackOperator.h"

namespace at::openreg {

// Note [Signatures]
// Calls of one signature have results of the same sizes, strides and types, and the checks that the
// host makes of their arguments pass or fail alike. It consists of
//   - the operator and the environment of the call (Note [The environment of a kernel]);
//   - per tensor the metadata, which tensors are the same one, and how their memory overlaps; of
//     tensors in a row of a list whose metadata is the same, how many there are;
//   - integers, flags and texts as they are;
//   - numbers, by their class and by how they compare with the number before
//     (Note [Classes of numbers]); as they are where results are counted by them;
//   - host tensors without dimensions, which are numbers as well, by metadata and class.
class CallSignature {
 public:
  // std::nullopt if the arguments have something that no signature describes: CPU tensors with
  // dimensions, other layouts than strided, symbolic sizes.
  static std::optional<CallSignature> of(const FallbackOperator& op,
                                         const c10::FunctionSchema& schema,
                                         c10::ArrayRef<c10::IValue> arguments);

  c10::ArrayRef<int64_t> words() const { return words_; }
  size_t hash() const { return hash_; }

 private:
  class Builder;

  c10::SmallVector<int64_t, 64> words_;
  size_t hash_ = 0;
};

}  // namespace at::openreg
