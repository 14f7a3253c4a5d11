#include "csrc/aten/fallback/CallPlan.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "csrc/aten/kernel/EmptyTensor.h"
#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {
namespace {

// More than a program with sizes of its own choice has; one that goes on finding new ones starts
// again.
constexpr size_t kMaxPlans = 1 << 16;

struct HashOfSignature {
  size_t operator()(const CallSignature& signature) const { return signature.hash(); }
};

struct Plans {
  std::shared_mutex mutex;
  std::unordered_map<CallSignature, std::shared_ptr<const ResultPlan>, HashOfSignature>
      by_signature;
};

Plans& plans() {
  static auto* instance = new Plans();  // outlives all threads
  return *instance;
}

// What begins each part of a signature, so that no two calls have the same words.
enum Tag : int64_t {
  kNone,
  kUndefined,
  kDeviceTensor,
  kHostScalar,
  kRepeated,
  kList,
  kValue,
  kType,
  kGenerator,
};

int64_t pack(int64_t tag, int64_t value) { return tag | value << 8; }

int64_t flagsOf(const TensorBase& tensor) {
  const TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return int64_t(impl->is_conj()) | int64_t(impl->is_neg()) << 1 |
         int64_t(impl->is_wrapped_number()) << 2;
}

int64_t globalState() {
  const Context& context = at::globalContext();
  return static_cast<int64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())) |
         int64_t(context.deterministicAlgorithms()) << 8 |
         int64_t(context.userEnabledMkldnn()) << 9;
}

// Whether an argument is a number of any type, or a list of such.
bool takesNumbers(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  while (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) {
    type = type->containedType(0);
  }
  return type->kind() == c10::TypeKind::NumberType;
}

int64_t bitsOf(double number) {
  int64_t bits = 0;
  static_assert(sizeof(bits) == sizeof(number));
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

}  // namespace

std::optional<CallSignature> CallSignature::of(const FallbackOperator& op,
                                               const c10::FunctionSchema& schema,
                                               c10::ArrayRef<c10::IValue> arguments) {
  CallSignature signature;
  signature.words_.push_back(reinterpret_cast<int64_t>(&op));
  signature.words_.push_back(globalState());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!signature.add(op, arguments[i], schema.arguments()[i])) {
      return std::nullopt;
    }
  }
  for (const int64_t word : signature.words_) {
    signature.hash_ = c10::hash_combine(signature.hash_, static_cast<size_t>(word));
  }
  return signature;
}

void CallSignature::addWords(c10::ArrayRef<int64_t> words) {
  words_.append(words.begin(), words.end());
}

bool CallSignature::addTensor(const Tensor& tensor) {
  if (!tensor.defined()) {
    words_.push_back(kUndefined);
    return true;
  }
  const bool is_host_scalar = tensor.is_cpu() && tensor.dim() == 0;
  if (!isPlain(tensor) || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
      !(isOpenReg(tensor) || is_host_scalar)) {
    return false;
  }
  const auto* seen = std::find(tensors_.begin(), tensors_.end(), tensor.unsafeGetTensorImpl());
  if (seen != tensors_.end()) {
    words_.push_back(pack(kRepeated, seen - tensors_.begin()));
    return true;
  }
  tensors_.push_back(tensor.unsafeGetTensorImpl());
  words_.push_back(
      pack(is_host_scalar ? kHostScalar : kDeviceTensor,
           flagsOf(tensor) | static_cast<int64_t>(tensor.scalar_type()) << 8 | tensor.dim() << 16));
  addWords(tensor.sizes());
  addWords(tensor.strides());
  return true;
}

bool CallSignature::addTensors(const c10::IValue& list) {
  const auto values = list.toListRef();
  words_.push_back(pack(kList, static_cast<int64_t>(values.size())));
  return std::all_of(values.begin(), values.end(), [&](const c10::IValue& value) {
    if (value.isNone()) {
      words_.push_back(kNone);
      return true;
    }
    return addTensor(value.toTensor());
  });
}

// Of a number, the type is enough: results have the sizes and types that they have for any other,
// except of operators that count with it.
void CallSignature::addNumber(const FallbackOperator& op, const c10::IValue& number) {
  const int64_t type = number.isDouble()          ? 0
                       : number.isInt()           ? 1
                       : number.isBool()          ? 2
                       : number.isComplexDouble() ? 3
                                                  : 4;
  words_.push_back(pack(kType, type));
  if (op.countsWithNumbers()) {
    words_.push_back(number.isDouble() ? bitsOf(number.toDouble())
                     : number.isInt()  ? number.toInt()
                                       : 0);
  }
}

bool CallSignature::add(const FallbackOperator& op, const c10::IValue& value,
                        const c10::Argument& argument) {
  if (value.isTensor()) {
    return addTensor(value.toTensor());
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    return addTensors(value);
  }
  if (value.isNone()) {
    words_.push_back(kNone);
  } else if (value.isGenerator()) {
    words_.push_back(kGenerator);
  } else if (value.isList() && takesNumbers(argument)) {
    const auto numbers = value.toListRef();
    words_.push_back(pack(kList, static_cast<int64_t>(numbers.size())));
    for (const c10::IValue& number : numbers) {
      addNumber(op, number);
    }
  } else if (value.isDouble() || value.isComplexDouble() || takesNumbers(argument)) {
    addNumber(op, value);
  } else if (value.isInt()) {
    addWords({kValue, value.toInt()});
  } else if (value.isBool()) {
    addWords({kValue, value.toBool()});
  } else if (value.isDevice()) {
    addWords({kValue, static_cast<int64_t>(std::hash<c10::Device>()(value.toDevice()))});
  } else if (value.isIntList() || value.isBoolList() || value.isDoubleList()) {
    const auto elements = value.toListRef();
    words_.push_back(pack(kList, static_cast<int64_t>(elements.size())));
    for (const c10::IValue& element : elements) {
      words_.push_back(element.isDouble() ? bitsOf(element.toDouble())
                       : element.isBool() ? int64_t(element.toBool())
                                          : element.toInt());
    }
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    words_.push_back(pack(kList, static_cast<int64_t>(text.size())));
    for (const char character : text) {
      words_.push_back(character);
    }
  } else {
    return false;
  }
  return true;
}

PlannedTensor PlannedTensor::argument(size_t index) {
  PlannedTensor planned;
  planned.kind = Kind::Argument;
  planned.argument_index = index;
  return planned;
}

PlannedTensor PlannedTensor::likeNew(const TensorBase& tensor) {
  PlannedTensor planned;
  planned.kind = Kind::New;
  planned.dtype = tensor.scalar_type();
  planned.is_conj = tensor.is_conj();
  planned.is_neg = tensor.is_neg();
  planned.sizes = tensor.sizes();
  planned.strides = tensor.strides();
  return planned;
}

Tensor PlannedTensor::allocate(c10::Device device) const {
  Tensor tensor = emptyStridedOnCurrentDevice(sizes, strides, dtype);
  TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(is_conj || is_neg)) {
    impl->_set_conj(is_conj);
    impl->_set_neg(is_neg);
  }
  return tensor;
}

void PlannedTensor::check(const TensorBase& result) const {
  TORCH_CHECK(
      result.defined() && result.sizes() == IntArrayRef(sizes) && result.scalar_type() == dtype,
      "expected a result of sizes ", IntArrayRef(sizes), " and type ", dtype,
      " as in an earlier call with such arguments, got ",
      result.defined() ? result.toString() : "none", " of sizes ",
      result.defined() ? result.sizes() : IntArrayRef());
}

std::shared_ptr<const ResultPlan> findPlan(const CallSignature& signature) {
  Plans& known = plans();
  const std::shared_lock<std::shared_mutex> lock(known.mutex);
  const auto found = known.by_signature.find(signature);
  return found == known.by_signature.end() ? nullptr : found->second;
}

void keepPlan(const CallSignature& signature, ResultPlan plan) {
  auto kept = std::make_shared<const ResultPlan>(std::move(plan));
  Plans& known = plans();
  const std::unique_lock<std::shared_mutex> lock(known.mutex);
  if (known.by_signature.size() >= kMaxPlans) {
    known.by_signature.clear();
  }
  known.by_signature.insert_or_assign(signature, std::move(kept));
}

}  // namespace at::openreg
