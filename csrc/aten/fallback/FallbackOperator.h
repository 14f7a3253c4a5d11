// The fallback's properties of an operator, and its call counts.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <string_view>

#include "build/generated/facts/DataChecks.h"
#include "build/generated/facts/OtherMetadata.h"
#include "csrc/aten/dtypes/WiderTypes.h"
#include "csrc/aten/fallback/FallbackMode.h"
#include "csrc/aten/fallback/MixedDevices.h"
#include "csrc/aten/refusals/Refusals.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {

// Calls that ran on the stream, calls for which the host waited, and the bytes of results that were
// copied because the CPU's kernel did not compute them in device memory.
struct FallbackCount {
  int64_t asynchronous;
  int64_t synchronous;
  int64_t copied_bytes;
};

// Counts per operator, such as {"aten::cholesky", {2, 1, 64}}, since the start or the last reset.
// Operators without calls are omitted.
OPENREG_EXPORT std::map<std::string, FallbackCount> fallbackStats();
OPENREG_EXPORT void resetFallbackStats();

// The layout of a call's tensors, such as Dense or NestedTensor. Tracers leave a key of their own
// in the set.
c10::DispatchKey functionalityOf(c10::DispatchKeySet keys);

// Whether the channels of images, or of volumes, are the innermost dimension.
inline bool isChannelsLast(const Tensor& tensor) {
  return tensor.suggest_memory_format() != c10::MemoryFormat::Contiguous;
}

// The sparse, quantized and nested tensors among the arguments of a call.
struct LayoutCounts {
  int not_plain = 0;          // see isPlain()
  bool are_coalesced = true;  // the sparse ones
};

class FallbackOperator {
 public:
  explicit FallbackOperator(const c10::OperatorHandle& op);

  // With the overload, such as "aten::add.out". Lives as long as the process.
  const std::string& name() const { return name_; }

  // Whether the sizes of a call's results, and errors at the call, do not depend on data.
  bool isPredictable(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) const;

  // Whether sizes, strides and types of the results, and errors at the call, follow from the
  // arguments' metadata, so that a call can be repeated without waiting for its results; see Note
  // [Calls that repeat].
  bool canPlan(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) const;

  // Whether CUDA's kernel of such a call also makes the host wait. Programs may rely only on waits
  // that CUDA has as well.
  bool waitsOnCuda(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
                   const LayoutCounts& layouts) const;

  // For calls with tensors on several devices; see Note [CPU tensors in a call].
  const CudaKernel& cudaKernel() const { return cuda_kernel_; }

  // Whether the operator takes a random number generator.
  bool drawsNumbers() const { return draws_numbers_; }

  // Whether the CPU kernel may run on other tensors than those of a call; see Note [Predicted
  // plans].
  bool takesDummies() const { return takes_dummies_; }

  // Whether the operator has a kernel for the device "meta".
  bool hasMetaKernel() const { return has_meta_kernel_; }

  // Whether the operator's Meta kernel describes the results of a call with these tensors.
  bool isDescribedByMeta(c10::ArrayRef<const Tensor*> tensors) const;

  // Whether the operator convolves the first operand with the second one.
  bool isConvolution() const;

  // Whether result sizes depend on floating-point numbers, such as the end of a range, and not only
  // on integers.
  bool countsWithNumbers() const { return counts_with_numbers_; }

  // The dtypes in which calls are computed in a wider dtype, for tensors of the layout given by
  // `keys`; see Note [Wider types].
  DtypeSet dtypesToWiden(c10::DispatchKeySet keys) const {
    return widened_dtypes_.of(functionalityOf(keys));
  }

  // What CUDA refuses of calls with dense tensors; see Note [Refusals].
  const Refusals& refusals() const { return refusals_; }

  // The kernel descriptor of a call on the stream. Calls on the calling thread use the same name.
  const orKernel& kernel() const { return kernel_; }

  // A kernel of the same name that throws.
  struct Rethrow {
    std::exception_ptr exception;
    void operator()() const { std::rethrow_exception(exception); }
  };
  const orKernel& throwingKernel() const { return throwing_kernel_; }

  // Counts a call that runs on the stream.
  void countAsynchronousCall() { asynchronous_calls_.fetch_add(1, std::memory_order_relaxed); }

  // Counts a call that makes the host wait, and acts according to the mode: does nothing, warns
  // once, or throws NotImplementedError.
  void countSynchronousCall();

  // The bytes of results that were copied. From any thread.
  std::atomic<int64_t>& copiedBytes() { return copied_bytes_; }

  FallbackCount count() const;
  void resetCount();

 private:
  const std::string name_;
  const bool is_predictable_;
  const std::string_view sized_by_;  // an argument with which a call is; may be empty
  const bool is_sparse_product_;
  // Null if there are none.
  const c10::openreg::facts::Choice<c10::openreg::facts::DataChecks>* const data_checks_;
  const CudaKernel cuda_kernel_;
  const bool draws_numbers_;
  const bool takes_dummies_;
  const bool has_meta_kernel_;
  const c10::openreg::facts::Choice<c10::openreg::facts::OtherMetadata>* const
      other_metadata_;  // null if there is none
  const bool counts_with_numbers_;
  const WidenedDtypes widened_dtypes_;
  const Refusals refusals_;  // none with the device type openreg
  const std::string kernel_name_;
  const orKernel kernel_;
  const orKernel throwing_kernel_;
  std::atomic<int64_t> asynchronous_calls_ = 0;
  std::atomic<int64_t> synchronous_calls_ = 0;
  std::atomic<int64_t> copied_bytes_ = 0;
  std::atomic<int> warned_in_ = 0;  // fallbackModeNumber() of the last warning
};

// Returns the same object for each call of an operator.
FallbackOperator& fallbackOperator(const c10::OperatorHandle& op);

}  // namespace at::openreg
