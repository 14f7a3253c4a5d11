#include "csrc/aten/fallback/FallbackOperator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "build/generated/facts/DynamicShape.h"
#include "build/generated/facts/NeedsData.h"
#include "build/generated/facts/SizedBy.h"
#include "build/generated/facts/SizesFromNumbers.h"
#include "build/generated/facts/SparseProduct.h"
#include "csrc/aten/fallback/StreamCall.h"
#include "csrc/aten/launch/BoxedArguments.h"
#include "csrc/core/Mutex.h"
#include "torch_openreg/aten/KernelNames.h"
#include "torch_openreg/aten/OpLaunch.h"
#include "torch_openreg/aten/TensorAlias.h"
#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

namespace facts = c10::openreg::facts;
using facts::DataChecks;

struct Registry {
  c10::openreg::SharedMutex mutex;
  std::unordered_map<c10::OperatorName, std::unique_ptr<FallbackOperator>> operators
      OPENREG_GUARDED_BY(mutex);
};

Registry& registry() {
  static auto* instance = new Registry();  // outlives all threads
  return *instance;
}

template <typename Visit>
void visitOperators(const Visit& visit) {
  Registry& known = registry();
  const c10::openreg::SharedLock lock(known.mutex);
  for (const auto& [name, op] : known.operators) {
    visit(*op);
  }
}

const c10::IValue& argumentOf(const c10::FunctionSchema& schema,
                              c10::ArrayRef<c10::IValue> arguments, std::string_view name) {
  const auto index = schema.argumentIndexWithName(name);
  TORCH_INTERNAL_ASSERT(index.has_value(), schema.name(), " has no argument ", name);
  return arguments[*index];
}

// Whether the call checks data, on this device or on CUDA.
bool checksData(const facts::Choice<DataChecks>& checks, const c10::FunctionSchema& schema,
                c10::ArrayRef<c10::IValue> arguments, bool on_cuda) {
  const auto named = [&](std::string_view name) -> const c10::IValue& {
    return argumentOf(schema, arguments, name);
  };
  switch (checks.choice) {
    case DataChecks::Always:
      return true;
    case DataChecks::IfGiven:
      return !named(checks.argument).isNone();
    case DataChecks::IfConverted: {
      const Tensor& number = named(checks.argument).toTensor();
      return isOpenReg(number) && number.scalar_type() != arguments[0].toTensor().scalar_type();
    }
    case DataChecks::IfUnbounded:
      return named("min").toScalar().toDouble() == named("max").toScalar().toDouble();
    case DataChecks::IfSingle:
      return named("steps").toInt() == 1;
    case DataChecks::IfDistinct:
      return !on_cuda || !named("replacement").toBool() || named("num_samples").toInt() == 1;
  }
  TORCH_INTERNAL_ASSERT(false);
  return true;  // without optimization, g++ does not see that the line before throws
}

bool isTensorOrTensors(const c10::Argument& result) {
  const c10::TypePtr& type = result.type();
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::ListType::ofTensors());
}

template <typename Table>
std::string_view argumentIn(const Table& table, std::string_view operator_name) {
  const std::string_view* const argument = table.find(operator_name);
  return argument == nullptr ? std::string_view() : *argument;
}

// Operators outside ATen may lack tags, so nothing is concluded from missing ones.
bool isPredictableOperator(const c10::OperatorHandle& op, const std::string& name) {
  const auto& results = op.schema().returns();
  return op.operator_name().getNamespace() == "aten" && !op.hasTag(at::Tag::dynamic_output_shape) &&
         !op.hasTag(at::Tag::data_dependent_output) &&
         std::all_of(results.begin(), results.end(), &isTensorOrTensors) &&
         !facts::kDynamicShape.contains(name);
}

// A CPU kernel that draws numbers and is not given a generator draws from the program's.
bool takesDummies(const c10::OperatorHandle& op, const std::string& name, bool draws_numbers) {
  return (draws_numbers || !op.hasTag(at::Tag::nondeterministic_seeded)) &&
         !facts::kNeedsData.contains(name);
}

bool hasMetaKernel(const c10::OperatorHandle& op) {
  return compositionOf(op, /*is_strided=*/true).has_value() ||
         op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

}  // namespace

std::map<std::string, FallbackCount> fallbackStats() {
  std::map<std::string, FallbackCount> stats;
  visitOperators([&](FallbackOperator& op) {
    const FallbackCount count = op.count();
    if (count.asynchronous + count.synchronous > 0) {
      stats.emplace(op.name(), count);
    }
  });
  return stats;
}

void resetFallbackStats() {
  visitOperators([](FallbackOperator& op) { op.resetCount(); });
}

FallbackOperator::FallbackOperator(const c10::OperatorHandle& op)
    : name_(c10::toString(op.operator_name())),
      is_predictable_(isPredictableOperator(op, name_)),
      sized_by_(argumentIn(facts::kSizedBy, name_)),
      is_sparse_product_(facts::kSparseProduct.contains(name_)),
      data_checks_(facts::kDataChecks.find(name_)),
      cuda_kernel_(op),
      draws_numbers_(std::any_of(op.schema().arguments().begin(), op.schema().arguments().end(),
                                 &isGenerator)),
      takes_dummies_(at::openreg::takesDummies(op, name_, draws_numbers_)),
      has_meta_kernel_(at::openreg::hasMetaKernel(op)),
      other_metadata_(facts::kOtherMetadata.find(name_)),
      counts_with_numbers_(facts::kSizesFromNumbers.contains(name_)),
      widened_dtypes_(at::openreg::dtypesToWiden(name_)),
      refusals_(c10::openreg::servesCuda() ? refusalsOf(name_) : Refusals{}),
      kernel_name_(kernelNameOf(name_)),
      kernel_(c10::openreg::describeKernel<WrappedKernel<StreamCallClosure>>(kernel_name_.c_str())),
      throwing_kernel_(c10::openreg::describeKernel<Rethrow>(kernel_name_.c_str())) {}

c10::DispatchKey functionalityOf(c10::DispatchKeySet keys) {
  return c10::toFunctionalityKey(
      keys.remove(c10::DispatchKey::PythonDispatcher).highestPriorityTypeId());
}

bool FallbackOperator::isPredictable(const c10::FunctionSchema& schema,
                                     c10::ArrayRef<c10::IValue> arguments) const {
  return is_predictable_ ||
         (!sized_by_.empty() && !argumentOf(schema, arguments, sized_by_).isNone());
}

bool FallbackOperator::canPlan(const c10::FunctionSchema& schema,
                               c10::ArrayRef<c10::IValue> arguments) const {
  return isPredictable(schema, arguments) &&
         (data_checks_ == nullptr ||
          !checksData(*data_checks_, schema, arguments, /*on_cuda=*/false));
}

bool FallbackOperator::isDescribedByMeta(c10::ArrayRef<const Tensor*> tensors) const {
  if (other_metadata_ == nullptr || !has_meta_kernel_) {
    return has_meta_kernel_;
  }
  const auto has_none = [&](const auto& property) {
    return std::none_of(tensors.begin(), tensors.end(), [&](const Tensor* tensor) {
      return tensor->defined() && property(*tensor);
    });
  };
  switch (other_metadata_->choice) {
    case facts::OtherMetadata::Dtypes:
      return has_none([](const Tensor& one) { return isReducedFloatingType(one.scalar_type()); });
    case facts::OtherMetadata::ChannelsLast:
      return has_none([](const Tensor& one) { return isChannelsLast(one); });
    case facts::OtherMetadata::ChannelsLast3d:
    case facts::OtherMetadata::Convolution:
      return has_none([](const Tensor& one) { return one.dim() == 5 && isChannelsLast(one); });
    case facts::OtherMetadata::Sizes:
    case facts::OtherMetadata::Strides:
      break;
  }
  return false;
}

bool FallbackOperator::isConvolution() const {
  return other_metadata_ != nullptr && other_metadata_->choice == facts::OtherMetadata::Convolution;
}

bool FallbackOperator::waitsOnCuda(const c10::FunctionSchema& schema,
                                   c10::ArrayRef<c10::IValue> arguments,
                                   const LayoutCounts& layouts) const {
  if (!isPredictable(schema, arguments) ||
      (data_checks_ != nullptr && checksData(*data_checks_, schema, arguments, /*on_cuda=*/true))) {
    return true;
  }
  // The components of a tensor of another layout depend on data. Two sparse operands have a sparse
  // result, and uncoalesced operands are coalesced first.
  return layouts.not_plain > 1 ||
         (layouts.not_plain == 1 && !(is_sparse_product_ && layouts.are_coalesced));
}

void FallbackOperator::countSynchronousCall() {
  const FallbackMode current = fallbackMode();
  synchronous_calls_.fetch_add(1, std::memory_order_relaxed);
  if (current == FallbackMode::Silent) {
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      current == FallbackMode::Warn, name_, ": this call makes the host wait for ",
      c10::openreg::kDeviceType,
      " and run the CPU kernel, which the fallback mode \"error\" forbids; call "
      "torch.openreg.set_fallback_mode(\"silent\") to allow it");
  if (warned_in_.exchange(fallbackModeNumber(), std::memory_order_relaxed) !=
      fallbackModeNumber()) {
    TORCH_WARN(name_, ": the host waits for ", c10::openreg::kDeviceType,
               " and runs the CPU kernel.");
  }
}

FallbackCount FallbackOperator::count() const {
  return {.asynchronous = asynchronous_calls_.load(std::memory_order_relaxed),
          .synchronous = synchronous_calls_.load(std::memory_order_relaxed),
          .copied_bytes = copied_bytes_.load(std::memory_order_relaxed)};
}

void FallbackOperator::resetCount() {
  asynchronous_calls_.store(0, std::memory_order_relaxed);
  synchronous_calls_.store(0, std::memory_order_relaxed);
  copied_bytes_.store(0, std::memory_order_relaxed);
}

FallbackOperator& fallbackOperator(const c10::OperatorHandle& op) {
  Registry& known = registry();
  {
    const c10::openreg::SharedLock lock(known.mutex);
    const auto found = known.operators.find(op.operator_name());
    if (found != known.operators.end()) {
      return *found->second;
    }
  }
  auto made = std::make_unique<FallbackOperator>(op);
  const c10::openreg::ExclusiveLock lock(known.mutex);
  return *known.operators.emplace(op.operator_name(), std::move(made)).first->second;
}

}  // namespace at::openreg
