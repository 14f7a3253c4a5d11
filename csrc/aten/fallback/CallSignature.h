// The properties of a call that determine its plan.
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
  // std::nullopt if a signature cannot describe the arguments: CPU tensors with dimensions, layouts
  // other than strided, symbolic sizes.
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
