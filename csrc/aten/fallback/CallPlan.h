// What is known about the results of a call before it runs.
//
// Note [Calls that repeat]
// The host can go on before a kernel has run if it knows what results the kernel will have. For an
// operator without a shape function we learn that: the first call with some arguments runs on the
// calling thread, and a plan of its results is kept under the arguments' signature, which is all
// that sizes, strides and types of results can depend on. A call with a signature that has a plan
// allocates the results and enqueues. So a training loop waits in its first step only.
//
// This is for operators of ATen whose results do not depend on data in other ways than by their
// values. torch's tags say which do; the worker compares what it got with the plan, so a wrong plan
// is an error and not a wrong result.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/aten/fallback/FallbackOperator.h"

namespace at::openreg {

// The metadata of a call.
class CallSignature {
 public:
  // std::nullopt if the arguments have something that no signature describes: CPU tensors with
  // dimensions, other layouts than strided, symbolic sizes.
  static std::optional<CallSignature> of(const FallbackOperator& op,
                                         const c10::FunctionSchema& schema,
                                         c10::ArrayRef<c10::IValue> arguments);

  bool operator==(const CallSignature& other) const { return words_ == other.words_; }
  size_t hash() const { return hash_; }

 private:
  CallSignature() = default;

  bool add(const FallbackOperator& op, const c10::IValue& value, const c10::Argument& argument);
  void addNumber(const FallbackOperator& op, const c10::IValue& number);
  bool addTensor(const Tensor& tensor);
  bool addTensors(const c10::IValue& list);
  void addWords(c10::ArrayRef<int64_t> words);

  c10::SmallVector<int64_t, 64> words_;
  c10::SmallVector<const c10::TensorImpl*, 8> tensors_;  // in order of appearance, while it is made
  size_t hash_ = 0;
};

// One result, or one element of a list.
struct PlannedTensor {
  enum class Kind : uint8_t {
    Undefined,
    Argument,  // the openreg tensor at `argument_index`, not counting repetitions
    New,
  };

  static PlannedTensor undefined() { return {}; }
  static PlannedTensor argument(size_t index);
  static PlannedTensor likeNew(const TensorBase& tensor);

  // An openreg tensor as planned, whose contents are to come. For Kind::New.
  Tensor allocate(c10::Device device) const;

  // Throws unless a tensor that the kernel returned is as planned. For Kind::New.
  void check(const TensorBase& result) const;

  Kind kind = Kind::Undefined;
  size_t argument_index = 0;
  ScalarType dtype = ScalarType::Undefined;
  bool is_conj = false;
  bool is_neg = false;
  c10::SmallVector<int64_t, 6> sizes = {};
  c10::SmallVector<int64_t, 6> strides = {};
};

// One value that the operator returns: a tensor or a list of tensors.
struct PlannedResult {
  bool is_list;
  std::vector<PlannedTensor> tensors;
};

// An empty `out=` argument that gets sizes and memory for the result.
struct PlannedResize {
  PlannedResize(size_t index, IntArrayRef new_sizes, IntArrayRef new_strides)
      : argument_index(index), sizes(new_sizes), strides(new_strides) {}

  size_t argument_index;  // as in PlannedTensor
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
};

struct CallPlan {
  std::vector<PlannedResize> resizes = {};
  std::vector<PlannedResult> results = {};
};

// Empty for a call that cannot run on the stream: it returns views, or resizes an argument that has
// elements.
using ResultPlan = std::optional<CallPlan>;

// The plan under a signature; null if it has none yet.
std::shared_ptr<const ResultPlan> findPlan(const CallSignature& signature);
void keepPlan(const CallSignature& signature, ResultPlan plan);

}  // namespace at::openreg
