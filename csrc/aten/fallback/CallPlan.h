// A plan: the properties of a call's results that are known before it runs.
//
// Note [Calls that repeat]
// The host can continue before a kernel has run if the metadata of the kernel's results are known.
// For an operator without a shape function they are predicted in the first call with a signature
// (Note [Signatures], Note [Predicted plans]), and kept as a plan. This call and later ones
// allocate the results by the plan, and are enqueued. Where a prediction fails, the first call runs
// on the calling thread, and its plan is learned from what the kernel returned.
//
// This applies to operators of ATen if data affects only the values of their results, and if their
// checks at the call do not read data. A plan is always verified: after each run, sizes, strides,
// type and memory of every result are compared with the plan. A wrong plan raises an error and
// never gives a wrong result. It is discarded, and the next call learns a new one.
//
// With OPENREG_FALLBACK_VERIFY=1, each planned call is also compared bit by bit with the functional
// operator.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace at::openreg {

// One result, or one element of a list.
struct PlannedTensor {
  enum class Kind : uint8_t {
    Undefined,
    Argument,  // the openreg tensor at `argument_index`, without repetitions
    New,
  };

  static PlannedTensor undefined() { return {}; }
  static PlannedTensor argument(size_t index) {
    return {.kind = Kind::Argument, .argument_index = index};
  }
  // For a new tensor that the kernel returned. The planned tensor has no internal overlap.
  static PlannedTensor likeNew(const TensorBase& tensor);

  // Allocates an uninitialized tensor on the current device according to the plan. For Kind::New.
  Tensor allocate() const;

  // Whether a tensor returned by the kernel matches the plan. For Kind::New.
  bool describes(const TensorBase& result) const;

  Kind kind = Kind::Undefined;
  size_t argument_index = 0;
  ScalarType dtype = ScalarType::Undefined;
  bool is_conj = false;
  bool is_neg = false;
  DimVector sizes = {};
  DimVector strides = {};
};

// One return value of the operator: a tensor or a list of tensors.
struct PlannedResult {
  bool is_list;
  std::vector<PlannedTensor> tensors;
};

// An empty `out=` argument that is resized to hold the result.
struct PlannedResize {
  size_t argument_index;  // as in PlannedTensor
  DimVector sizes;
  DimVector strides;

  bool operator==(const PlannedResize&) const = default;
};

struct CallPlan {
  enum class Kind : uint8_t {
    OnHost,      // each call runs on the calling thread: it returns views, or resizes an argument
                 // that has elements
    WarnedOnce,  // the next call runs on the calling thread: the first one did and warned, and
                 // what warns a second time warns each time
    OnStream,
  };

  Kind kind = Kind::OnStream;
  std::vector<PlannedResize> resizes = {};
  std::vector<PlannedResult> results = {};
  std::vector<c10::Warning> warnings = {};  // the warnings of each call

  // Set by the worker if a run contradicts the plan.
  mutable std::atomic<bool> is_refuted = false;

  bool isValid() const { return !is_refuted.load(std::memory_order_relaxed); }

  // Whether all results are single new tensors, which can be compared with the operator's.
  bool areAllNew() const;
};

// The plan of a call, by what a kernel of another device has done to `aliases`, tensors that had
// the metadata of `originals`, and by what it returned on that device.
std::shared_ptr<CallPlan> planOf(c10::ArrayRef<Tensor> originals, c10::ArrayRef<Tensor> aliases,
                                 c10::ArrayRef<c10::IValue> results, c10::DeviceType device);

}  // namespace at::openreg
