#include "csrc/aten/dtypes/WiderTypes.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "csrc/aten/dtypes/HalfTransforms.h"
#include "csrc/aten/launch/BoxedArguments.h"

namespace at::openreg {
namespace {

// A dtype without a wider one is returned unchanged.
ScalarType widerOf(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Bool:
      return ScalarType::Byte;
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e4m3fnuz:
    case ScalarType::Float8_e5m2:
    case ScalarType::Float8_e5m2fnuz:
      return ScalarType::Float;
    case ScalarType::ComplexHalf:
      return ScalarType::ComplexFloat;
    default:
      return dtype;
  }
}

// The dtype of a result that has `dtype` when it is computed in the wider type of `asked`.
ScalarType narrowedFor(ScalarType asked, ScalarType dtype) {
  const ScalarType wider = widerOf(asked);
  if (dtype == wider) {
    return asked;
  }
  if (c10::isComplexType(asked) && dtype == c10::toRealValueType(wider)) {
    return c10::toRealValueType(asked);
  }
  if (c10::isFloatingType(asked) && dtype == c10::toComplexType(wider)) {
    return c10::toComplexType(asked);
  }
  return dtype;
}

bool isDtype(const c10::Argument& argument) {
  return isOfKind(argument, c10::TypeKind::ScalarTypeType);
}

// Whether the dtype of a tensor can make the call compute in one of `dtypes`.
bool hasPromotingTensor(DtypeSet dtypes, c10::ArrayRef<c10::IValue> arguments) {
  const DtypeSet promoting = dtypesThatPromoteTo(dtypes);
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    return value.isTensor() && (setOf(value.toTensor().scalar_type()) & promoting) != 0;
  });
}

bool hasDtypeArgument(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isInt() && isDtype(schema.arguments()[i])) {
      return true;
    }
  }
  return false;
}

// The dtype of a call with float8 tensors, which are not promoted: that of all tensors but indices.
// Undefined if they have several, for which the kernel raises an error.
std::optional<ScalarType> float8Of(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<ScalarType> float8;
  bool has_others = false;
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) {
      const ScalarType dtype = value.toTensor().scalar_type();
      if (c10::isFloat8Type(dtype)) {
        has_others = has_others || float8.value_or(dtype) != dtype;
        float8 = dtype;
      } else {
        has_others = has_others || !c10::isIntegralType(dtype, /*includeBool=*/false);
      }
    }
  }
  return float8.has_value() && has_others ? ScalarType::Undefined : float8;
}

ScalarType dtypeOf(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  const std::optional<ScalarType> float8 = float8Of(arguments);
  return float8.has_value() ? *float8 : computedDtype(schema, arguments);
}

// The arguments of a call in the wider type, and the tensors that it copies back to the caller's.
class WiderCall {
 public:
  WiderCall(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        asked_(dtypeOf(schema_, argumentsOnStack(schema_, *stack))) {}

  void run() {
    const size_t count = schema_.arguments().size();
    checkOverlap();
    // docs: wider-call
    torch::jit::Stack wider;
    wider.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      wider.push_back(widened(argument(i), schema_.arguments()[i]));
    }
    op_.callBoxed(&wider);
    for (const Conversion& conversion : conversions_) {
      if (conversion.is_written) {
        write(conversion.given, conversion.wider);
      }
    }
    for (c10::IValue& result : wider) {
      result = narrowed(result);
    }
    // docs: end
    torch::jit::drop(*stack_, count);
    stack_->insert(stack_->end(), std::make_move_iterator(wider.begin()),
                   std::make_move_iterator(wider.end()));
  }

 private:
  struct Conversion {
    Tensor given;
    Tensor wider;
    bool is_written;
  };

  const c10::IValue& argument(size_t index) const {
    return argumentsOnStack(schema_, *stack_)[index];
  }

  // The wider tensors do not share memory, so overlap that the kernel would refuse is checked here.
  void checkOverlap() const {
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      if (!isWritten(schema_.arguments()[i]) || !isStrided(argument(i))) {
        continue;
      }
      const Tensor& written = argument(i).toTensor();
      at::assert_no_internal_overlap(written);
      for (size_t j = 0; j < schema_.arguments().size(); ++j) {
        if (isStrided(argument(j)) && !argument(j).toTensor().is_same(written)) {
          at::assert_no_partial_overlap(written, argument(j).toTensor());
        }
      }
    }
  }

  static bool isStrided(const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() &&
           value.toTensor().layout() == at::kStrided && value.toTensor().has_storage();
  }

  bool hasWider(ScalarType dtype) const {
    return dtype == ScalarType::Bool ? asked_ == ScalarType::Bool : widerOf(dtype) != dtype;
  }

  c10::IValue widened(const c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
      return widened(value.toTensor(), argument);
    }
    if (value.isInt() && isDtype(argument)) {
      return widerOf(value.toScalarType());
    }
    TORCH_INTERNAL_ASSERT(!value.isTensorList() && !value.isOptionalTensorList(), schema_.name(),
                          ": lists of tensors are not widened");
    return value;
  }

  Tensor widened(const Tensor& tensor, const c10::Argument& argument) {
    if (!tensor.defined() || !hasWider(tensor.scalar_type())) {
      return tensor;
    }
    for (Conversion& known : conversions_) {
      if (known.given.is_same(tensor)) {
        known.is_written = known.is_written || isWritten(argument);
        return known.wider;
      }
    }
    const ScalarType dtype = widerOf(tensor.scalar_type());
    // The previous contents of `out=` are not read.
    const bool is_only_written = argument.is_out() && tensor.layout() == at::kStrided;
    Tensor wider =
        is_only_written ? at::empty_like(tensor, tensor.options().dtype(dtype)) : tensor.to(dtype);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      wider.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    conversions_.push_back({tensor, wider, isWritten(argument)});
    return wider;
  }

  static void write(const Tensor& given, const Tensor& wider) {
    if (given.layout() == at::kStrided && given.sizes() != wider.sizes()) {
      given.resize_(wider.sizes());
      given.as_strided_(wider.sizes(), wider.strides());
    }
    given.copy_(wider);
  }

  c10::IValue narrowed(const c10::IValue& result) const {
    if (!result.isTensor() || !result.toTensor().defined()) {
      return result;
    }
    const Tensor& wider = result.toTensor();
    for (const Conversion& conversion : conversions_) {
      if (conversion.wider.is_same(wider)) {
        return conversion.given;
      }
    }
    const auto arguments = argumentsOnStack(schema_, *stack_);
    const bool is_argument =
        std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
          return value.isTensor() && value.toTensor().is_same(wider);
        });
    return is_argument ? wider : wider.to(narrowedFor(asked_, wider.scalar_type()));
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack* const stack_;
  const ScalarType asked_;
  std::vector<Conversion> conversions_;
};

}  // namespace

ScalarType computedDtype(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  at::native::ResultTypeState state;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    const c10::Argument& argument = schema.arguments()[i];
    if (value.isInt() && isDtype(argument)) {
      return value.toScalarType();
    }
    if (argument.is_out()) {
      continue;
    }
    if (value.isTensor() && value.toTensor().defined()) {
      state = at::native::update_result_type_state(value.toTensor(), state);
    } else if (value.isScalar() && isOfKind(argument, c10::TypeKind::NumberType)) {
      state = at::native::update_result_type_state(value.toScalar(), state);
    }
  }
  return at::native::result_type(state);
}

bool computesIn(DtypeSet dtypes, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto arguments = argumentsOnStack(schema, stack);
  return (hasPromotingTensor(dtypes, arguments) || hasDtypeArgument(schema, arguments)) &&
         (setOf(dtypeOf(schema, arguments)) & dtypes) != 0;
}

void runWider(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
              torch::jit::Stack* stack) {
  checkHalfTransform(op.schema(), argumentsOnStack(op.schema(), *stack));
  WiderCall(op, stack).run();
}

c10::OperatorHandle operatorOfName(const char* name) {
  const c10::OperatorName parsed = torch::jit::parseName(name);
  return c10::Dispatcher::singleton().findSchemaOrThrow(parsed.name.c_str(),
                                                        parsed.overload_name.c_str());
}

}  // namespace at::openreg
