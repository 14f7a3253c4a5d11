#include "csrc/aten/fallback/FallbackOperator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>

#include "csrc/aten/fallback/BoxedArguments.h"
#include "csrc/core/Settings.h"
#include "torch_openreg/aten/KernelNames.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {
namespace {

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<c10::OperatorName, std::unique_ptr<FallbackOperator>> operators;
};

Registry& registry() {
  static auto* instance = new Registry();  // outlives all threads
  return *instance;
}

template <typename Visit>
void visitOperators(const Visit& visit) {
  const std::shared_lock<std::shared_mutex> lock(registry().mutex);
  for (const auto& [name, op] : registry().operators) {
    visit(*op);
  }
}

// Operators of ATen whose results' sizes depend on data, and that no tag says so of.
bool hasUntaggedDynamicShape(const std::string& name) {
  static const auto* names = new std::set<std::string>{
      "aten::_ctc_loss.Tensor",
      "aten::_ctc_loss.Tensor_out",
      "aten::_padded_dense_to_jagged_forward",
      "aten::linalg_lstsq",
      "aten::linalg_lstsq.out",
  };
  return names->count(name) == 1;
}

// Whether the operator reads a number from the device and converts it to the type of its first
// argument, which raises if the number does not fit.
bool convertsNumberOfDevice(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  if (!name.starts_with("aten::masked_fill.Tensor") &&
      !name.starts_with("aten::masked_fill_.Tensor") &&
      !name.starts_with("aten::index_fill.int_Tensor") &&
      !name.starts_with("aten::index_fill_.int_Tensor")) {
    return false;
  }
  const bool is_of_masked_fill = name.starts_with("aten::masked_fill");
  const Tensor& value = arguments[is_of_masked_fill ? 2 : 3].toTensor();
  return isOpenReg(value) && value.scalar_type() != arguments[0].toTensor().scalar_type();
}

// Whether a histogram takes its bounds from the data, which have to be finite.
bool seeksBounds(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  return name.starts_with("aten::histc") &&
         arguments[2].toScalar().toDouble() == arguments[3].toScalar().toDouble();
}

// Operators of ATen whose code looks at data on the host before it launches, on every device, and
// raises what it finds: by name, with the argument that makes it look, or "" for each call.
bool checksData(const std::string& name, const c10::FunctionSchema& schema,
                c10::ArrayRef<c10::IValue> arguments) {
  static const auto* names = new std::map<std::string, std::string>{
      {"aten::_histogramdd_bin_edges", ""},
      {"aten::_histogramdd_from_bin_cts", ""},
      {"aten::_histogramdd_from_bin_tensors", ""},
      {"aten::_linalg_eigvals", ""},
      {"aten::cholesky", ""},
      {"aten::cholesky.out", ""},
      {"aten::cholesky_inverse", ""},
      {"aten::cholesky_inverse.out", ""},
      {"aten::fake_quantize_per_channel_affine_cachemask", ""},
      {"aten::histogram.bin_ct", ""},
      {"aten::histogram.bin_ct_out", ""},
      {"aten::histogram.bins_tensor", ""},
      {"aten::histogram.bins_tensor_out", ""},
      {"aten::linalg_eig", ""},
      {"aten::linalg_eig.out", ""},
      {"aten::linalg_eigvals", ""},
      {"aten::linalg_eigvals.out", ""},
      {"aten::multinomial", ""},
      {"aten::multinomial.out", ""},
      {"aten::searchsorted.Scalar", "sorter"},
      {"aten::searchsorted.Scalar_out", "sorter"},
      {"aten::searchsorted.Tensor", "sorter"},
      {"aten::searchsorted.Tensor_out", "sorter"},
      {"aten::segment_reduce", ""},
  };
  const auto found = names->find(name);
  if (found == names->end() || found->second.empty()) {
    return found != names->end() || convertsNumberOfDevice(name, arguments) ||
           seeksBounds(name, arguments);
  }
  const auto index = schema.argumentIndexWithName(found->second);
  return index.has_value() && !arguments[*index].isNone();
}

bool isTensorOrTensors(const c10::Argument& result) {
  const c10::TypePtr& type = result.type();
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::ListType::ofTensors());
}

// Operators of other libraries may leave their tags out, so nothing is concluded from those.
bool isPredictableOperator(const c10::OperatorHandle& op, const std::string& name) {
  const auto& results = op.schema().returns();
  return op.operator_name().getNamespace() == "aten" && !op.hasTag(at::Tag::dynamic_output_shape) &&
         !op.hasTag(at::Tag::data_dependent_output) &&
         std::all_of(results.begin(), results.end(), &isTensorOrTensors) &&
         !hasUntaggedDynamicShape(name);
}

bool takesTheSameAndResults(const c10::FunctionSchema& schema, const c10::FunctionSchema& out) {
  const auto& own = schema.arguments();
  const auto& others = out.arguments();
  const auto is_same = [](const c10::Argument& one, const c10::Argument& other) {
    return one.name() == other.name() && *one.type() == *other.type();
  };
  const auto is_result = [](const c10::Argument& argument) {
    return argument.is_out() && argument.type()->kind() == c10::TypeKind::TensorType;
  };
  return others.size() == own.size() + schema.returns().size() &&
         std::equal(own.begin(), own.end(), others.begin(), is_same) &&
         std::all_of(others.begin() + static_cast<ptrdiff_t>(own.size()), others.end(), is_result);
}

// Only where both have kernels of their own: an `out=` that ATen makes of the functional operator
// would copy as well.
std::optional<c10::OperatorHandle> findOutVariant(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  const std::string overload = name.overload_name.empty() ? "out" : name.overload_name + "_out";
  const auto out = c10::Dispatcher::singleton().findSchema({name.name, overload});
  const bool is_usable = out.has_value() && !op.schema().is_mutable() &&
                         op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                         out->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                         takesTheSameAndResults(op.schema(), out->schema());
  return is_usable ? out : std::nullopt;
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

FallbackOperator::FallbackOperator(const c10::OperatorHandle& op, DescribeKernel* describe_kernel)
    : name_(c10::toString(op.operator_name())),
      is_predictable_(isPredictableOperator(op, name_)),
      draws_numbers_(std::any_of(op.schema().arguments().begin(), op.schema().arguments().end(),
                                 &isGenerator)),
      counts_with_numbers_(op.operator_name().name == "aten::arange" ||
                           op.operator_name().name == "aten::range"),
      out_variant_(findOutVariant(op)),
      result_kernel_(findResultKernel(name_)),
      kernel_name_(kernelNameOf(name_)),
      kernel_(describe_kernel(kernel_name_.c_str())) {}

bool FallbackOperator::canPlan(const c10::FunctionSchema& schema,
                               c10::ArrayRef<c10::IValue> arguments) const {
  return is_predictable_ && !checksData(name_, schema, arguments);
}

void FallbackOperator::countSynchronousCall() {
  const FallbackMode current = fallbackMode();
  synchronous_calls_.fetch_add(1, std::memory_order_relaxed);
  if (current == FallbackMode::Silent) {
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      current == FallbackMode::Warn, name_,
      " has no kernel for openreg and the fallback mode is \"error\". With "
      "torch.openreg.set_fallback_mode(\"silent\") the host waits and runs the CPU kernel.");
  if (warned_in_.exchange(fallbackModeNumber(), std::memory_order_relaxed) !=
      fallbackModeNumber()) {
    TORCH_WARN(name_, " has no kernel for openreg: the host waits and runs the CPU kernel.");
  }
}

FallbackCount FallbackOperator::count() const {
  return {.asynchronous = asynchronous_calls_.load(std::memory_order_relaxed),
          .synchronous = synchronous_calls_.load(std::memory_order_relaxed)};
}

void FallbackOperator::resetCount() {
  asynchronous_calls_.store(0, std::memory_order_relaxed);
  synchronous_calls_.store(0, std::memory_order_relaxed);
}

FallbackOperator& fallbackOperator(const c10::OperatorHandle& op, DescribeKernel* describe_kernel) {
  Registry& known = registry();
  {
    const std::shared_lock<std::shared_mutex> lock(known.mutex);
    const auto found = known.operators.find(op.operator_name());
    if (found != known.operators.end()) {
      return *found->second;
    }
  }
  auto made = std::make_unique<FallbackOperator>(op, describe_kernel);
  const std::unique_lock<std::shared_mutex> lock(known.mutex);
  return *known.operators.emplace(op.operator_name(), std::move(made)).first->second;
}

}  // namespace at::openreg
