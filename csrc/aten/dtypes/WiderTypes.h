// Dtypes that CUDA supports for an operator and the CPU does not.
//
// Note [Wider types]
// Programs written for CUDA use dtypes for which the CPU has no kernel, such as complex32 in
// Fourier transforms. Such a call is computed in the next wider type that the CPU supports, and
// each result is rounded once, to the dtype of the call:
//
//   complex32                   complex64
//   float16, bfloat16, float8   float32
//   bool                        uint8
//
// The tensors are converted, the operator is called again with the wider ones, and its results are
// converted back, all by operators of this device. So the call is as asynchronous as the wider
// call: it waits in its first run only if that does, and a graph can capture it.
//
// csrc/aten/facts/operators.yaml lists the operators with such dtypes. Generated and composite
// operators look it up at compile time (WideningKernel.h), the fallback once per operator; calls of
// an operator without an entry look up nothing. A dtype that CUDA does not support either raises
// the CPU's error. test/aten/test_dtypes.py compares the list with torch's OpInfos for CUDA and
// with what the CPU's kernels refuse.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>

#include <string_view>

#include "build/generated/facts/Widened.h"
#include "build/generated/facts/WidenedSparse.h"
#include "build/generated/facts/WidenedSparseCsr.h"
#include "csrc/aten/facts/FactTable.h"
#include "torch_openreg/core/Macros.h"

namespace at::openreg {

using c10::openreg::DtypeSet;
using c10::openreg::setOf;

// The dtypes of an operator's calls that are computed in a wider dtype.
struct WidenedDtypes {
  DtypeSet dense;
  DtypeSet sparse;
  DtypeSet sparse_csr;

  // For tensors of this layout.
  DtypeSet of(DispatchKey layout) const {
    switch (layout) {
      case DispatchKey::Dense:
        return dense;
      case DispatchKey::Sparse:
        return sparse;
      case DispatchKey::SparseCsr:
        return sparse_csr;
      default:
        return 0;
    }
  }
};

// `name` has the namespace, and may have the overload.
constexpr WidenedDtypes dtypesToWiden(std::string_view name) {
  namespace facts = c10::openreg::facts;
  const auto in = [name](const auto& table) {
    const DtypeSet* const found = table.find(name);
    return found == nullptr ? 0 : *found;
  };
  return {in(facts::kWidened), in(facts::kWidenedSparse), in(facts::kWidenedSparseCsr)};
}

// The dtypes of tensors that can make a call compute in one of `dtypes`: with a complex number,
// float16 becomes complex32.
constexpr DtypeSet dtypesThatPromoteTo(DtypeSet dtypes) {
  const bool has_complex_half = (dtypes & setOf(ScalarType::ComplexHalf)) != 0;
  return has_complex_half ? dtypes | setOf(ScalarType::Half) : dtypes;
}

// The operator of a name such as "aten::add.out".
OPENREG_EXPORT c10::OperatorHandle operatorOfName(const char* name);

// The dtype in which a call computes: the dtype argument, or that to which its inputs are promoted.
ScalarType computedDtype(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

// Whether the call, whose arguments are the last on the stack, computes in one of `dtypes`: the
// dtype argument, or the dtype that its inputs are promoted to.
OPENREG_EXPORT bool computesIn(DtypeSet dtypes, const c10::OperatorHandle& op,
                               const torch::jit::Stack& stack);

// Runs a call in the wider dtype.
// Errors: those of the wider call. Also throws, as CUDA's kernels do, if a tensor to be written
// overlaps itself or another argument.
OPENREG_EXPORT void runWider(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack);

}  // namespace at::openreg
