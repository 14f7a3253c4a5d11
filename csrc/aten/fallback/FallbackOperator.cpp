#include "csrc/aten/fallback/FallbackOperator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>

#include "csrc/aten/fallback/StreamCall.h"
#include "csrc/core/Settings.h"

namespace at::openreg {
namespace {

constexpr std::array<const char*, 3> kModeNames = {"silent", "warn", "error"};

std::atomic<FallbackMode>& mode() {
  static std::atomic<FallbackMode> value =
      parseFallbackMode(std::string(c10::openreg::settingText(orSettingIndex_OPENREG_FALLBACK)));
  return value;
}

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

// Variants that use the result as scratch memory of other sizes.
bool resizesItsResult(const c10::OperatorName& name) {
  return name.name == "aten::binary_cross_entropy" || name.name == "aten::huber_loss";
}

// Only where both have kernels of their own: an `out=` that ATen makes of the functional operator
// would copy as well.
std::optional<c10::OperatorHandle> findOutVariant(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  const std::string overload = name.overload_name.empty() ? "out" : name.overload_name + "_out";
  const auto out = c10::Dispatcher::singleton().findSchema({name.name, overload});
  const bool is_usable = out.has_value() && !resizesItsResult(name) && !op.schema().is_mutable() &&
                         op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                         out->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                         takesTheSameAndResults(op.schema(), out->schema());
  return is_usable ? out : std::nullopt;
}

}  // namespace

FallbackMode fallbackMode() { return mode().load(std::memory_order_relaxed); }

void setFallbackMode(FallbackMode value) {
  visitOperators([](FallbackOperator& op) { op.forgetWarning(); });
  mode().store(value, std::memory_order_relaxed);
}

const char* fallbackModeName(FallbackMode value) { return kModeNames[static_cast<size_t>(value)]; }

FallbackMode parseFallbackMode(const std::string& name) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (name == kModeNames[i]) {
      return static_cast<FallbackMode>(i);
    }
  }
  TORCH_CHECK_VALUE(false, "fallback mode: expected \"silent\", \"warn\" or \"error\", got \"",
                    name, "\"");
}

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
      counts_with_numbers_(op.operator_name().name == "aten::arange" ||
                           op.operator_name().name == "aten::range"),
      out_variant_(findOutVariant(op)),
      result_kernel_(findResultKernel(name_)),
      kernel_(describeCallOnStream(name_.c_str())) {}

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
  if (!has_warned_.exchange(true, std::memory_order_relaxed)) {
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

FallbackOperator& fallbackOperator(const c10::OperatorHandle& op) {
  Registry& known = registry();
  {
    const std::shared_lock<std::shared_mutex> lock(known.mutex);
    const auto found = known.operators.find(op.operator_name());
    if (found != known.operators.end()) {
      return *found->second;
    }
  }
  auto made = std::make_unique<FallbackOperator>(op);
  const std::unique_lock<std::shared_mutex> lock(known.mutex);
  return *known.operators.emplace(op.operator_name(), std::move(made)).first->second;
}

}  // namespace at::openreg
