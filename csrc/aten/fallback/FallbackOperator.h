// What the fallback knows about an operator, and how often it was called.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "csrc/aten/dtypes/WiderTypes.h"
#include "csrc/aten/fallback/FallbackMode.h"
#include "torch_openreg/core/Launch.h"

namespace at::openreg {

// Calls that ran on the stream, and calls for which the host waited.
struct FallbackCount {
  int64_t asynchronous;
  int64_t synchronous;
};

// Calls per operator, such as {"aten::cholesky", {2, 1}}, since the start or the last reset.
// Operators that were not called are left out.
OPENREG_EXPORT std::map<std::string, FallbackCount> fallbackStats();
OPENREG_EXPORT void resetFallbackStats();

// How the stream's worker runs calls of an operator whose kernel has this name. The name lives as
// long as the process.
using DescribeKernel = orKernel(const char* name);

// The layout of a call's tensors, such as Dense or NestedTensor. Tracers leave a key of their own
// in the set.
c10::DispatchKey functionalityOf(c10::DispatchKeySet keys);

struct DataChecks;

class FallbackOperator {
 public:
  FallbackOperator(const c10::OperatorHandle& op, DescribeKernel* describe_kernel);

  // With the overload, such as "aten::add.out". Lives as long as the process.
  const std::string& name() const { return name_; }

  // Whether sizes, strides and types of the results follow from the arguments' metadata, and
  // errors at the call as well, so that a call can be repeated without waiting for its results; see
  // Note [Calls that repeat].
  bool canPlan(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) const;

  // Whether CUDA's kernel of such a call makes the host wait as well. What only waits here orders
  // nothing that a program may rely on.
  bool waitsOnCuda(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) const;

  // Whether it takes a generator.
  bool drawsNumbers() const { return draws_numbers_; }

  // Whether sizes depend on numbers such as the end of a range, and not only on integers.
  bool countsWithNumbers() const { return counts_with_numbers_; }

  // The CPU's variant that writes results which the caller has allocated, in the order in which
  // this operator returns them: what this operator takes, and the results.
  const std::optional<c10::OperatorHandle>& outVariant() const { return out_variant_; }

  // The dtypes of calls that are computed in a wider one, for tensors of the layout that `keys`
  // say; see Note [Wider types].
  DtypeSet dtypesToWiden(c10::DispatchKeySet keys) const;

  // How the stream's worker runs a call. Its name is that of the calling thread's calls, too.
  const orKernel& kernel() const { return kernel_; }

  // Counts a call that runs on the stream.
  void countAsynchronousCall() { asynchronous_calls_.fetch_add(1, std::memory_order_relaxed); }

  // Counts a call that makes the host wait, and does what the mode says: nothing, warn once, or
  // throw NotImplementedError.
  void countSynchronousCall();

  FallbackCount count() const;
  void resetCount();

 private:
  const std::string name_;
  const bool is_predictable_;
  const bool is_matrix_product_;
  const DataChecks* const data_checks_;  // null if there are none
  const bool draws_numbers_;
  const bool counts_with_numbers_;
  const std::optional<c10::OperatorHandle> out_variant_;
  const DtypeSet widened_dtypes_;
  const DtypeSet widened_sparse_dtypes_;
  const DtypeSet widened_csr_dtypes_;
  const std::string kernel_name_;
  const orKernel kernel_;
  std::atomic<int64_t> asynchronous_calls_ = 0;
  std::atomic<int64_t> synchronous_calls_ = 0;
  std::atomic<int> warned_in_ = 0;  // fallbackModeNumber() of the last warning
};

// The same object for each call with the same operator.
FallbackOperator& fallbackOperator(const c10::OperatorHandle& op, DescribeKernel* describe_kernel);

}  // namespace at::openreg
