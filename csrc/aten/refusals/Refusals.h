// What CUDA refuses and the CPU computes: dtypes, and operators that are not deterministic.
//
// Note [Refusals]
// Device type cuda stands for a GPU, so a call that CUDA refuses is refused here as well, at the
// call, with the exception and the text of CUDA: dtypes that CUDA's kernel of the operator lacks,
// operators of which CUDA has no kernel, and, with torch.use_deterministic_algorithms, kernels that
// add in any order. Device type openreg computes what the CPU does.
//
// csrc/aten/facts/operators.yaml lists the operators, and torch's declarations those without a
// kernel. The check is chosen when an operator is
// registered (RefusingKernel.h), in the fallback once per operator: with the device type openreg,
// and for operators without an entry, a call runs the same functions as if there was no check.
// ATen's composite operators are refused by the operators that they call, as on CUDA; calls in a
// wider type (Note [Wider types]) are checked once, in that type.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "build/generated/facts/CudaDtypes.h"
#include "build/generated/facts/NotDeterministic.h"
#include "build/generated/facts/WithoutCudaKernel.h"
#include "csrc/aten/facts/FactTable.h"

namespace at::openreg {

using c10::openreg::DtypeSet;

// What is listed for an operator; null if it is not.
struct Refusals {
  const c10::openreg::facts::Refusal* dtypes = nullptr;
  const c10::openreg::facts::Refusal* nondeterminism = nullptr;
  bool lacks_kernel = false;  // CUDA has no kernel of the operator
  bool has_rule = false;      // CUDA's kernel has a rule that no table of torch shows

  constexpr bool areEmpty() const {
    return dtypes == nullptr && nondeterminism == nullptr && !lacks_kernel && !has_rule;
  }
};

// The operators whose kernels on CUDA have such a rule; refuse() has the rules.
inline constexpr std::array<std::string_view, 9> kWithRule = {
    "aten::_fft_c2c",          "aten::_fft_c2r",          "aten::_fft_r2c",
    "aten::index_select",      "aten::index_select.out",  "aten::narrow_copy",
    "aten::native_group_norm", "aten::native_layer_norm", "aten::native_dropout_backward"};

// `name` has the namespace, and the overload unless it is the default one.
constexpr Refusals refusalsOf(std::string_view name) {
  namespace facts = c10::openreg::facts;
  return {facts::kCudaDtypes.find(name), facts::kNotDeterministic.find(name),
          facts::kWithoutCudaKernel.contains(name),
          std::ranges::find(kWithRule, name) != kWithRule.end()};
}

inline bool isDeterminismAsked() {
  return C10_UNLIKELY(at::globalContext().deterministicAlgorithms());
}

// CUDA's text for an operator of which a backend, such as "SparseCUDA", has no kernel.
std::string textWithoutKernel(const c10::OperatorName& op, std::string_view backend);

// Whether the devices' compute capability is below `capability`, such as 89 for 8.9.
bool isCapabilityBelow(int capability);

// Refuses the call, whose arguments are the last on the stack, or returns. Before it refuses a
// dtype, `check_shapes` throws the errors that CUDA finds first; without it, the operator's
// function for tensors without data does. Errors: those of CUDA. If the mode of determinism only
// warns, issues a warning.
void refuse(const Refusals& refusals, const c10::OperatorHandle& op, const torch::jit::Stack& stack,
            c10::function_ref<void()> check_shapes);
void refuse(const Refusals& refusals, const c10::OperatorHandle& op,
            const torch::jit::Stack& stack);

}  // namespace at::openreg
