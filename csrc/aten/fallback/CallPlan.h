// What is known about the results of a call before it runs.
//
// Note [Calls that repeat]
// The host can go on before a kernel has run if it knows what results the kernel will have. For an
// operator without a shape function we learn that: the first call with a signature runs on the
// calling thread, and a plan of its results is kept (Note [Signatures]). A call with a signature
// that has a plan allocates the results and enqueues. So a training loop waits in its first step
// only.
//
// This is for operators of ATen whose results do not depend on data in other ways than by their
// values, and whose checks at the call do not look at data. Nothing of a plan is taken on trust:
//   - how a kernel writes a planned result is tried before it is used, see Writing;
//   - after each run, sizes, strides, type and memory of every result are compared with the plan.
//     A plan that proves wrong is an error and not a wrong result, and it is forgotten: the next
//     call learns anew.
// With OPENREG_FALLBACK_VERIFY=1, each planned call is also compared bit by bit with the functional
// operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace at::openreg {

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

  // A tensor on the current device as planned, whose contents are to come. For Kind::New.
  Tensor allocate() const;

  // Whether a tensor that the kernel returned is as planned. For Kind::New.
  bool describes(const TensorBase& result) const;

  Kind kind = Kind::Undefined;
  size_t argument_index = 0;
  ScalarType dtype = ScalarType::Undefined;
  bool is_conj = false;
  bool is_neg = false;
  c10::SmallVector<int64_t, 5> sizes = {};
  c10::SmallVector<int64_t, 5> strides = {};
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
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
};

struct CallPlan {
  enum class Kind : uint8_t {
    OnHost,      // each call runs on the calling thread: it returns views, or resizes an argument
                 // that has elements
    WarnedOnce,  // the next call runs on the calling thread: the first one warned, and what
                 // warns a second time warns each time
    OnStream,
  };

  // How new results come about.
  enum class Writing : uint8_t {
    ByOperator,  // the operator allocates them, see Note [Results in place]
    OutVariant,  // its out variant writes them
  };

  Kind kind = Kind::OnStream;
  Writing writing = Writing::ByOperator;
  std::vector<PlannedResize> resizes = {};
  std::vector<PlannedResult> results = {};
  std::vector<c10::Warning> warnings = {};  // what each call warns of

  // Set by the worker that finds the plan wrong.
  mutable std::atomic<bool> is_refuted = false;

  // Whether all results are single tensors that a kernel can write as they are.
  bool areAllNew() const;
};

}  // namespace at::openreg
