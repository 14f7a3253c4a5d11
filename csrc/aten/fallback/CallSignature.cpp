#include "csrc/aten/fallback/CallSignature.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/aten/fallback/BoxedArguments.h"
#include "csrc/aten/kernel/FirstPlaces.h"
#include "csrc/aten/kernel/NumberClass.h"
#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {
namespace {

// What begins each part of a signature, so that no two calls have the same words.
enum Tag : int64_t {
  kNone,
  kUndefined,
  kDeviceTensor,
  kHostScalar,
  kRepeated,
  kAlike,
  kList,
  kValue,
  kNumber,
  kGenerator,
  kOverlap,
};

int64_t pack(int64_t tag, int64_t value) { return tag | value << 8; }

int64_t flagsOf(const TensorBase& tensor) {
  const TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return int64_t(impl->is_conj()) | int64_t(impl->is_neg()) << 1 |
         int64_t(impl->is_wrapped_number()) << 2;
}

// The kind of the argument, or of its elements if it is a list or optional.
c10::TypeKind kindOf(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  while (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) {
    type = type->containedType(0);
  }
  return type->kind();
}

// Whether an argument is a number that may have a fraction. Of integers, each value counts.
bool takesNumbers(const c10::Argument& argument) {
  return kindOf(argument) == c10::TypeKind::NumberType ||
         kindOf(argument) == c10::TypeKind::FloatType;
}

// Whether the number that a tensor holds has a class: those of types that only kernels know have
// none.
bool hasClass(ScalarType dtype) {
  return dtype != ScalarType::Float4_e2m1fn_x2 &&
         (dtype == ScalarType::Bool || c10::isIntegralType(dtype, /*includeBool=*/false) ||
          c10::isFloatingType(dtype) || c10::isComplexType(dtype));
}

// The number of a host tensor without dimensions.
Scalar numberOf(const Tensor& tensor) {
  if (C10_UNLIKELY(tensor.is_conj() || tensor.is_neg())) {
    return tensor.item();
  }
  const Scalar number = at::native::_local_scalar_dense_cpu(tensor);
  // No int64 has what a uint64 may be.
  return tensor.scalar_type() == kUInt64 ? Scalar(static_cast<double>(number.toUInt64())) : number;
}

int64_t bitsOf(double number) {
  int64_t bits = 0;
  static_assert(sizeof(bits) == sizeof(number));
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

}  // namespace

// A visitor of arguments. Each function returns whether the signature describes the argument.
class CallSignature::Builder {
 public:
  Builder(const FallbackOperator& op, CallSignature& signature)
      : op_(op), words_(signature.words_) {}

  bool add(const c10::IValue& value, const c10::Argument& argument) {
    argument_ = &argument;
    return visitArgument(value, argument, *this);
  }

  bool tensor(const Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) {
      addOverlaps(tensor);
    }
    return addTensor(tensor);
  }

  bool tensors(c10::ArrayRef<c10::IValue> list) { return optionalTensors(list); }

  bool optionalTensors(c10::ArrayRef<c10::IValue> list) {
    words_.push_back(pack(kList, static_cast<int64_t>(list.size())));
    // Of tensors in a row that are alike, the first one is described, and the others are counted.
    size_t described = words_.size();  // where that one begins
    int64_t alike = 0;
    const auto end_row = [&] {
      if (alike > 0) {
        words_.push_back(pack(kAlike, std::exchange(alike, 0)));
      }
      described = words_.size();
    };
    for (const c10::IValue& element : list) {
      if (element.isTensor() && isAlike(element.toTensor(), described)) {
        ++alike;
        continue;
      }
      end_row();
      if (element.isNone()) {
        words_.push_back(kNone);
      } else if (!addTensor(element.toTensor())) {
        return false;
      }
    }
    end_row();
    return true;
  }
  bool device(c10::Device device) {
    words_.append({kValue, static_cast<int64_t>(std::hash<c10::Device>()(device))});
    return true;
  }

  bool generator(const std::optional<Generator>& /*generator*/) {
    words_.push_back(kGenerator);
    return true;
  }

  bool plain(const c10::IValue& value) {
    if (value.isNone()) {
      words_.push_back(kNone);
    } else if (value.isList() && kindOf(*argument_) == c10::TypeKind::NumberType) {
      const auto numbers = value.toListRef();
      words_.push_back(pack(kList, static_cast<int64_t>(numbers.size())));
      for (const c10::IValue& number : numbers) {
        addNumber(number);
      }
    } else if (value.isScalar() && takesNumbers(*argument_)) {
      addNumber(value);
      addOrder(value);
    } else if (value.isInt()) {
      words_.append({kValue, value.toInt()});
    } else if (value.isBool()) {
      words_.append({kValue, value.toBool()});
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
      words_.append(text.begin(), text.end());
    } else if (value.isDevice()) {
      return device(value.toDevice());
    } else {
      return false;
    }
    return true;
  }

 private:
  static int64_t wordOf(const Tensor& tensor, Tag tag) {
    return pack(tag, flagsOf(tensor) | static_cast<int64_t>(tensor.scalar_type()) << 8 |
                         tensor.dim() << 16);
  }

  bool addTensor(const Tensor& tensor) {
    if (!tensor.defined()) {
      words_.push_back(kUndefined);
      return true;
    }
    const bool is_host_scalar = tensor.is_cpu() && tensor.dim() == 0;
    if (!isPlain(tensor) || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
        !(isOpenReg(tensor) || (is_host_scalar && hasClass(tensor.scalar_type())))) {
      return false;
    }
    // See Note [Long lists].
    const size_t place = places_.findOrAdd(tensor.unsafeGetTensorImpl(), tensors_.size());
    if (place < tensors_.size()) {
      words_.push_back(pack(kRepeated, static_cast<int64_t>(place)));
      return true;
    }
    tensors_.push_back(tensor.unsafeGetTensorImpl());
    words_.push_back(wordOf(tensor, is_host_scalar ? kHostScalar : kDeviceTensor));
    words_.append(tensor.sizes().begin(), tensor.sizes().end());
    words_.append(tensor.strides().begin(), tensor.strides().end());
    if (is_host_scalar) {
      addNumber(numberOf(tensor));
    }
    return true;
  }

  // Whether the tensor is new, and what the words from there on describe.
  bool isAlike(const Tensor& tensor, size_t described) {
    const auto dims = static_cast<size_t>(tensor.dim());
    const c10::ArrayRef<int64_t> words = c10::ArrayRef<int64_t>(words_).slice(described);
    if (words.size() != 1 + 2 * dims || !tensor.defined() ||
        tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || !isOpenReg(tensor) ||
        !isPlain(tensor) || words[0] != wordOf(tensor, kDeviceTensor) ||
        words.slice(1, dims) != tensor.sizes() || words.slice(1 + dims) != tensor.strides()) {
      return false;
    }
    if (places_.findOrAdd(tensor.unsafeGetTensorImpl(), tensors_.size()) < tensors_.size()) {
      return false;
    }
    tensors_.push_back(tensor.unsafeGetTensorImpl());
    return true;
  }

  // How the tensor's memory overlaps that of those before it, if they share a storage: kernels
  // refuse some overlaps.
  void addOverlaps(const Tensor& tensor) {
    for (TensorImpl* other : tensors_) {
      if (other->unsafe_storage().is_alias_of(tensor.unsafeGetTensorImpl()->unsafe_storage())) {
        words_.push_back(pack(kOverlap, static_cast<int64_t>(at::get_overlap_status(
                                            other, tensor.unsafeGetTensorImpl()))));
      }
    }
  }

  void addNumber(const Scalar& number) {
    words_.append({kNumber, static_cast<int64_t>(classOf(number))});
  }

  void addNumber(const c10::IValue& number) {
    addNumber(number.toScalar());
    if (op_.countsWithNumbers()) {
      words_.push_back(number.isDouble() ? bitsOf(number.toDouble())
                       : number.isInt()  ? number.toInt()
                       : number.isBool() ? int64_t(number.toBool())
                                         : 0);
    }
  }

  // How the number compares with the one before it.
  void addOrder(const c10::IValue& number) {
    if (number.isComplexDouble()) {
      return;
    }
    const auto value = number.toScalar().toDouble();
    if (previous_.has_value()) {
      words_.push_back(static_cast<int64_t>(orderOf(*previous_, value)));
    }
    previous_ = value;
  }

  const FallbackOperator& op_;
  c10::SmallVector<int64_t, 64>& words_;
  const c10::Argument* argument_ = nullptr;
  std::optional<double> previous_;
  c10::SmallVector<c10::TensorImpl*, 8> tensors_;  // in order of appearance
  FirstPlaces<const c10::TensorImpl*> places_;     // of `tensors_`
};

std::optional<CallSignature> CallSignature::of(const FallbackOperator& op,
                                               const c10::FunctionSchema& schema,
                                               c10::ArrayRef<c10::IValue> arguments) {
  CallSignature signature;
  const KernelEnvironment environment = KernelEnvironment::current();
  signature.words_.append({reinterpret_cast<int64_t>(&op),
                           static_cast<int64_t>(environment.settings()),
                           static_cast<int64_t>(environment.thread())});
  Builder builder(op, signature);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!builder.add(arguments[i], schema.arguments()[i])) {
      return std::nullopt;
    }
  }
  for (const int64_t word : signature.words_) {
    signature.hash_ = c10::hash_combine(signature.hash_, static_cast<size_t>(word));
  }
  return signature;
}

}  // namespace at::openreg
