// Operators on lists of tensors: one kernel for all of them.

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/copy_native.h>
#include <torch/library.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "csrc/aten/fallback/Fallback.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "torch_openreg/aten/KernelArguments.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

// Whether all tensors in the lists are on one openreg device.
bool haveListsOneDevice(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> device;
  for (const c10::IValue& value : arguments) {
    if (!value.isTensorList()) {
      continue;
    }
    for (const c10::IValue& element : value.toListRef()) {
      const Tensor& tensor = element.toTensor();
      if (!device.has_value() && isOpenReg(tensor)) {
        device = tensor.device();
      }
      if (!device.has_value() || !tensor.defined() || tensor.device() != *device) {
        return false;
      }
    }
  }
  return true;
}

// Raises CUDA's errors for a number that is a tensor; nothing where the device type is openreg,
// whose rules are those of the operators on single tensors. A kernel of CUDA for whole lists, which
// requires tensors alike, takes a number on their device alone. Products and quotients read one on
// the CPU before.
void checkNumber(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto arguments = argumentsOnStack(op.schema(), stack);
  const std::vector<Tensor> tensors = arguments[0].toTensorVector();
  const TensorList list(tensors);
  const Tensor& number = arguments[1].toTensor();
  const bool is_division = op.schema().name().starts_with("aten::_foreach_div");
  const bool reads_cpu = !op.schema().name().starts_with("aten::_foreach_add");
  if (tensors.empty() || (reads_cpu && number.is_cpu()) ||
      tensors[0].scalar_type() != number.scalar_type() ||
      !at::native::can_use_fast_route(c10::ArrayRef<TensorList>(list), c10::ArrayRef<Scalar>(),
                                      is_division)) {
    return;
  }
  const bool is_in_place = op.schema().is_mutable();
  TORCH_CHECK(number.dim() == 0 && number.numel() == 1,
              is_in_place ? "scalar tensor expected to be 0 dim but has "
                          : "scalar tensor expected to be 0 dim but it has ",
              number.dim(), " dimensions and ", number.numel(), " elements.");
  TORCH_CHECK(
      tensors[0].device() == number.device(),
      is_in_place ? "scalar tensor is expected to be on " : "scalar tensor expected to be on ",
      tensors[0].device(), " but is on ", number.device());
}

// One kernel for whole lists of tensors. If the lists are on several devices, one call per tensor,
// as on CUDA; that is ATen's own kernel, which the CPU also uses.
void runForeach(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (C10_LIKELY(haveListsOneDevice(argumentsOnStack(op.schema(), *stack)))) {
    runFallback(op, keys, stack);
  } else {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
}

// The same, for operators on one list and one number that is a tensor.
void runForeachWithNumber(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
  if (c10::openreg::servesCuda()) {
    checkNumber(op, *stack);
  }
  runForeach(op, keys, stack);
}

bool takesNumber(const c10::FunctionSchema& schema) {
  return schema.arguments().size() > 1 && schema.arguments()[1].name() == "other" &&
         schema.arguments()[1].type()->isSubtypeOf(*c10::TensorType::get());
}

// The overloads with a CPU tensor of numbers do the same as those with a list of numbers.
template <auto Function>
auto withNumbersOf(TensorList self, TensorList tensor1, TensorList tensor2, const Tensor& scalars) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto count = static_cast<int64_t>(self.size());
  return Function(self, tensor1, tensor2,
                  at::native::convert_tensor_to_scalar_list(scalars, count));
}

// Whether a copy stays on one device and needs no broadcast, conversion or error.
bool isPlainCopy(const Tensor& self, const Tensor& source, c10::Device device) {
  if (!isOpenReg(self) || !isOpenReg(source) || self.device() != device ||
      source.device() != device || source._is_zerotensor()) {
    return false;
  }
  const ScalarType dtype = self.scalar_type();
  const bool has_kernel = c10::isIntegralType(dtype, /*includeBool=*/true) ||
                          c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  if (!has_kernel || dtype != source.scalar_type() || self.sizes() != source.sizes() ||
      self.is_conj() != source.is_conj() || self.is_neg() != source.is_neg()) {
    return false;
  }
  const auto overlap = at::get_overlap_status(self, source);
  return at::has_internal_overlap(self) == at::MemOverlap::No &&
         (overlap == at::MemOverlapStatus::No || overlap == at::MemOverlapStatus::Full);
}

void copyListKernel(std::vector<Tensor>& self, const std::vector<Tensor>& sources) {
  for (size_t i = 0; i < self.size(); ++i) {
    at::native::copy_(self[i], sources[i], /*non_blocking=*/false);
  }
}

// Plain copies on one device are one kernel; others are copied one by one.
void copyList(TensorList self, TensorList sources, bool non_blocking) {
  at::native::check_foreach_api_restrictions(self, sources);
  const c10::Device device = self[0].device();
  bool is_plain = true;
  for (size_t i = 0; i < self.size() && is_plain; ++i) {
    is_plain = isPlainCopy(self[i], sources[i], device);
  }
  if (is_plain) {
    enqueue<"aten::_foreach_copy_">(device, copyListKernel, self, sources);
    return;
  }
  for (size_t i = 0; i < self.size(); ++i) {
    self[i].copy_(sources[i], non_blocking);
  }
}

using Pointwise = std::vector<Tensor> (*)(TensorList, TensorList, TensorList,
                                          c10::ArrayRef<Scalar>);
using PointwiseInPlace = void (*)(TensorList, TensorList, TensorList, c10::ArrayRef<Scalar>);

}  // namespace

OPENREG_LIBRARY_IMPL(aten, Dense, m) {
  m.impl("_foreach_addcdiv.Tensor", &withNumbersOf<Pointwise(&at::_foreach_addcdiv)>);
  m.impl("_foreach_addcdiv_.Tensor", &withNumbersOf<PointwiseInPlace(&at::_foreach_addcdiv_)>);
  m.impl("_foreach_addcmul.Tensor", &withNumbersOf<Pointwise(&at::_foreach_addcmul)>);
  m.impl("_foreach_addcmul_.Tensor", &withNumbersOf<PointwiseInPlace(&at::_foreach_addcmul_)>);
  m.impl("_foreach_copy_", TORCH_FN(copyList));
  const std::set<std::string> registered = {
      "aten::_foreach_copy_", "aten::_foreach_addcdiv.Tensor", "aten::_foreach_addcdiv_.Tensor",
      "aten::_foreach_addcmul.Tensor", "aten::_foreach_addcmul_.Tensor"};
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string full_name = c10::toString(name);
    if (name.name.starts_with("aten::_foreach_") && registered.count(full_name) == 0) {
      const bool takes_number = takesNumber(dispatcher.findSchema(name)->schema());
      m.impl(full_name.c_str(),
             takes_number ? torch::CppFunction::makeFromBoxedFunction<&runForeachWithNumber>()
                          : torch::CppFunction::makeFromBoxedFunction<&runForeach>());
    }
  }
}

}  // namespace at::openreg
