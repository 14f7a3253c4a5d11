#include "csrc/aten/refusals/Refusals.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/ScalarType.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/aten/dtypes/HalfTransforms.h"
#include "csrc/aten/dtypes/WiderTypes.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/aten/launch/DeviceCheck.h"
#include "csrc/core/DeviceForm.h"

namespace at::openreg {
namespace {

namespace facts = c10::openreg::facts;

using Arguments = c10::ArrayRef<c10::IValue>;

bool holds(const facts::ArgumentTest& test, const c10::FunctionSchema& schema,
           Arguments arguments) {
  const auto index = schema.argumentIndexWithName(std::string(test.argument));
  if (!index.has_value()) {
    return false;
  }
  const c10::IValue& value = arguments[*index];
  if (test.value == "given") {
    return !value.isNone();
  }
  if (test.value == "nonempty") {
    return value.toTensor().numel() != 0;
  }
  if (test.value == "inexact") {
    return value.toTensor().is_floating_point() || value.toTensor().is_complex();
  }
  if (value.isBool()) {
    return value.toBool() == (test.value == "True");
  }
  return value.isInt() ? std::to_string(value.toInt()) == test.value
                       : value.toStringView() == test.value;
}

bool holdAll(const facts::ArgumentTests& tests, const c10::FunctionSchema& schema,
             Arguments arguments) {
  return std::ranges::all_of(tests.all, [&](const facts::ArgumentTest& test) {
    return test.argument.empty() || holds(test, schema, arguments);
  });
}

bool applies(const facts::Refusal& refusal, const c10::FunctionSchema& schema,
             Arguments arguments) {
  return holdAll(refusal.if_all, schema, arguments) &&
         (refusal.unless_all.areEmpty() || !holdAll(refusal.unless_all, schema, arguments));
}

// The dtype in which CUDA's kernel would compute.
ScalarType kernelDtype(const c10::OperatorHandle& op, Arguments arguments) {
  return op.hasTag(at::Tag::pointwise) ? computedDtype(op.schema(), arguments)
                                       : arguments[0].toTensor().scalar_type();
}

// CUDA's kernels of products and poolings return before they look at the dtype.
bool hasNoElements(const c10::FunctionSchema& schema, Arguments arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isTensor() && !schema.arguments()[i].is_out() &&
        arguments[i].toTensor().defined() && arguments[i].toTensor().numel() == 0) {
      return true;
    }
  }
  return false;
}

// Throws errors of shapes, or of dtypes that differ.
void checkShapesOnMeta(const c10::OperatorHandle& op, Arguments arguments) {
  torch::jit::Stack on_meta(arguments.begin(), arguments.end());
  for (c10::IValue& value : on_meta) {
    if (value.isTensor() && value.toTensor().defined()) {
      const Tensor& tensor = value.toTensor();
      value = at::empty_strided(tensor.sizes(), tensor.strides(),
                                tensor.options().device(c10::DeviceType::Meta));
    }
  }
  try {
    op.callBoxed(&on_meta);
  } catch (const c10::NotImplementedError&) {
    // There is no function for shapes, or it refuses the dtype, too.
  }
}

[[noreturn]] void throwNotImplemented(std::string_view kernel, ScalarType dtype) {
  C10_THROW_ERROR(NotImplementedError,
                  c10::str('"', kernel, "\" not implemented for '", c10::toString(dtype), "'"));
}

// CUDA's convolutions are cuDNN's, but for depthwise ones and some transposed ones.
void refuseConvolution(const c10::OperatorHandle& /*op*/, Arguments arguments, ScalarType dtype) {
  const auto numbers = [&](size_t index) { return arguments[index].toIntVector(); };
  const std::vector<int64_t> stride = numbers(3);
  const std::vector<int64_t> padding = numbers(4);
  const std::vector<int64_t> dilation = numbers(5);
  const bool is_transposed = arguments[6].toBool();
  const std::vector<int64_t> output_padding = numbers(7);
  using Backend = at::native::ConvBackend;
  const Backend backend = at::native::select_conv_backend(
      arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toOptional<Tensor>(),
      c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
      c10::fromIntArrayRefSlow(dilation), is_transposed, c10::fromIntArrayRefSlow(output_padding),
      arguments[8].toInt(), std::nullopt);
  if (backend == Backend::CudaDepthwise2d) {
    throwNotImplemented("conv_depthwise2d_forward_cuda", dtype);
  }
  if (backend == Backend::CudaDepthwise3d) {
    throwNotImplemented("conv_depthwise3d", dtype);
  }
  for (size_t i = 0; is_transposed && i < stride.size(); ++i) {
    if (output_padding[i] >= stride[i]) {
      throwNotImplemented(
          stride.size() == 3 ? "slow_conv_transpose3d_out_cuda" : "slow_conv_transpose2d_out_cuda",
          dtype);
    }
  }
  TORCH_CHECK(false, "getCudnnDataTypeFromScalarType() not supported for ", c10::toString(dtype));
}

void refuseHistogram(const c10::OperatorHandle& /*op*/, Arguments /*arguments*/, ScalarType dtype) {
  TORCH_CHECK(dtype != ScalarType::Half, "HalfTensor is not supported");
}

// The wrapper of CUDA's kernel refuses them first.
bool areOnSeveralDevices(Arguments arguments) {
  std::optional<c10::Device> common;
  bool are_several = false;
  for (const c10::IValue& argument : arguments) {
    visitTensors(argument, [&](const Tensor& tensor) {
      are_several = isOnOtherDevice(common, tensor) || are_several;
    });
  }
  return are_several;
}

void refuseScatterOfNumber(const c10::OperatorHandle& op, Arguments /*arguments*/,
                           ScalarType dtype) {
  if (op.schema().argumentIndexWithName("value").has_value()) {
    throwNotImplemented("cuda_scatter_fill_base_kernel_reduce_multiply", dtype);
  }
}

// cuBLAS has scaled products of two types if one of them at least is float8_e4m3fn.
void checkScaledProduct(const c10::OperatorHandle& op, Arguments arguments, int capability) {
  if (isCapabilityBelow(capability)) {
    constexpr const char* kText =
        "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, "
        "or ROCm MI300+";
    TORCH_CHECK_NOT_IMPLEMENTED(op.schema().name() == "aten::_scaled_mm", kText);
    TORCH_CHECK(false, kText);
  }
  const ScalarType first = arguments[0].toTensor().scalar_type();
  const ScalarType second = arguments[1].toTensor().scalar_type();
  TORCH_CHECK_VALUE(first != ScalarType::Float8_e5m2 || second != ScalarType::Float8_e5m2,
                    "Multiplication of two Float8_e5m2 matrices is not supported");
  for (const ScalarType dtype : {first, second}) {
    TORCH_CHECK(dtype != ScalarType::Float8_e4m3fnuz && dtype != ScalarType::Float8_e5m2fnuz,
                "Cannot convert ScalarType ", c10::toString(dtype), " to cudaDataType.");
  }
}

// Operators whose errors have other words. The functions throw, or leave it to the text with the
// kernel's name.
struct OwnWords {
  std::string_view operator_name;
  void (*refuse)(const c10::OperatorHandle& op, Arguments arguments, ScalarType dtype);
};
constexpr std::array kOwnWords = {
    OwnWords{"aten::_convolution", &refuseConvolution},
    OwnWords{"aten::histc", &refuseHistogram},
    OwnWords{"aten::scatter", &refuseScatterOfNumber},
    OwnWords{"aten::scatter_", &refuseScatterOfNumber},
};

// CUDA's kernels of these products compare dtypes first, as the CPU's do.
bool findsDifferentDtypes(const c10::FunctionSchema& schema, Arguments arguments) {
  constexpr std::array<std::string_view, 4> kProducts = {"aten::addbmm", "aten::dot", "aten::mm",
                                                         "aten::vdot"};
  return std::ranges::find(kProducts, schema.name()) != kProducts.end() &&
         std::ranges::any_of(arguments, [&](const c10::IValue& argument) {
           return argument.isTensor() &&
                  argument.toTensor().scalar_type() != arguments[0].toTensor().scalar_type();
         });
}

// CUDA's normalizations read the parameters in the input's dtype; the CPU's also read float32.
void checkParameters(Arguments arguments, bool is_group_norm) {
  const Tensor& input = arguments[0].toTensor();
  if (!input.is_floating_point() || input.numel() == 0) {
    return;
  }
  for (const c10::IValue& argument : arguments.slice(1)) {
    if (argument.isTensor()) {
      const ScalarType dtype = argument.toTensor().scalar_type();
      // Of other pairs, the function that both devices' group norms share has an error.
      TORCH_CHECK(dtype == input.scalar_type() ||
                      (is_group_norm && (dtype != kFloat || input.scalar_type() == kDouble)),
                  "expected scalar type ", input.scalar_type(), " but found ", dtype);
    }
  }
}

// CUDA's kernel finds the dtype of the index when it has checked the rest.
void checkIndexOfSelection(Arguments arguments) {
  const Tensor& index = arguments[2].toTensor();
  const ScalarType dtype = index.scalar_type();
  if (dtype != kInt && dtype != kLong && index.dim() <= 1 && index.numel() > 0 &&
      !areOnSeveralDevices(arguments)) {
    throwNotImplemented("index_select_out_cuda_impl", dtype);
  }
}

// The rules of kWithRule.
void checkRule(const c10::FunctionSchema& schema, Arguments arguments) {
  if (schema.name().starts_with("aten::_fft_")) {
    checkHalfTransform(schema, arguments);
  } else if (schema.name() == "aten::native_dropout_backward") {
    const ScalarType mask = arguments[1].toTensor().scalar_type();
    TORCH_CHECK(mask == kBool, "Mask should be Bool Scalar Type", mask);
  } else if (schema.name() == "aten::index_select") {
    checkIndexOfSelection(arguments);
  } else if (schema.name() == "aten::narrow_copy") {
    c10::maybe_wrap_dim(arguments[1].toInt(), arguments[0].toTensor().dim());
  } else {
    checkParameters(arguments, /*is_group_norm=*/schema.name() == "aten::native_group_norm");
  }
}

void checkDtype(const facts::Refusal& refusal, const c10::OperatorHandle& op, Arguments arguments,
                c10::function_ref<void()> check_shapes) {
  if (refusal.capability != 0) {
    if (!areOnSeveralDevices(arguments)) {
      checkScaledProduct(op, arguments, refusal.capability);
    }
    return;
  }
  const ScalarType dtype = kernelDtype(op, arguments);
  if ((setOf(dtype) & refusal.dtypes) != 0 || !applies(refusal, op.schema(), arguments) ||
      hasNoElements(op.schema(), arguments) || findsDifferentDtypes(op.schema(), arguments)) {
    return;
  }
  if (!c10::isBitsType(dtype)) {  // of which functions for shapes know nothing
    check_shapes();
  }
  const auto* const words =
      std::ranges::find(kOwnWords, op.schema().name(), &OwnWords::operator_name);
  if (words != kOwnWords.end()) {
    words->refuse(op, arguments, dtype);
  }
  throwNotImplemented(refusal.name, dtype);
}

int cudaCapability() {
  const std::string text(c10::openreg::deviceForm().capability());
  const size_t point = text.find('.');
  return std::stoi(text.substr(0, point)) * 10 + std::stoi(text.substr(point + 1));
}

}  // namespace

std::string textWithoutKernel(const c10::OperatorName& op, std::string_view backend) {
  return c10::str("Could not run '", op, "' with arguments from the '", backend,
                  "' backend. This could be because the operator doesn't exist for this backend, "
                  "or was omitted during the selective/custom build process (if using custom "
                  "build).");
}

bool isCapabilityBelow(int capability) {
  static const int known = cudaCapability();
  return known < capability;
}

void refuse(const Refusals& refusals, const c10::OperatorHandle& op, const torch::jit::Stack& stack,
            c10::function_ref<void()> check_shapes) {
  TORCH_CHECK_NOT_IMPLEMENTED(!refusals.lacks_kernel,
                              textWithoutKernel(op.operator_name(), "CUDA"));
  const Arguments arguments = argumentsOnStack(op.schema(), stack);
  if (refusals.nondeterminism != nullptr && isDeterminismAsked() &&
      applies(*refusals.nondeterminism, op.schema(), arguments)) {
    at::globalContext().alertNotDeterministic(refusals.nondeterminism->name);
  }
  if (refusals.has_rule) {
    checkRule(op.schema(), arguments);
  }
  if (refusals.dtypes != nullptr) {
    checkDtype(*refusals.dtypes, op, arguments, check_shapes);
  }
}

void refuse(const Refusals& refusals, const c10::OperatorHandle& op,
            const torch::jit::Stack& stack) {
  refuse(refusals, op, stack, [&] { checkShapesOnMeta(op, argumentsOnStack(op.schema(), stack)); });
}

}  // namespace at::openreg
