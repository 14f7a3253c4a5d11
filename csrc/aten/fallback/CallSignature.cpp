#include "csrc/aten/fallback/CallSignature.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <c10/util/hash.h>

#include <bit>
#include <utility>

#include "csrc/aten/cpu/NumberClass.h"
#include "csrc/aten/layouts/Components.h"
#include "torch_openreg/aten/KernelEnvironment.h"
#include "torch_openreg/aten/TensorAlias.h"

namespace at::openreg {
namespace {

// The first word of each part of a signature. Tags make signatures of different calls differ.
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

// The kind of the argument, or of its elements if it is a list or an optional.
c10::TypeKind kindOf(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  while (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) {
    type = type->containedType(0);
  }
  return type->kind();
}

// Whether the argument is a number that may have a fraction. For integers, each value has its own
// signature.
bool takesNumbers(const c10::Argument& argument) {
  return kindOf(argument) == c10::TypeKind::NumberType ||
         kindOf(argument) == c10::TypeKind::FloatType;
}

// Whether the number in a tensor has a class: types that only kernels can read have none.
bool hasClass(ScalarType dtype) {
  return dtype != ScalarType::Float4_e2m1fn_x2 &&
         (dtype == ScalarType::Bool || c10::isIntegralType(dtype, /*includeBool=*/false) ||
          c10::isFloatingType(dtype) || c10::isComplexType(dtype));
}

// The number in a host tensor without dimensions.
Scalar numberOf(const Tensor& tensor) {
  if (C10_UNLIKELY(tensor.is_conj() || tensor.is_neg())) {
    return tensor.item();
  }
  const Scalar number = at::native::_local_scalar_dense_cpu(tensor);
  // A uint64 may not fit into an int64.
  return tensor.scalar_type() == kUInt64 ? Scalar(static_cast<double>(number.toUInt64())) : number;
}

// The value of a real number; 0 for a complex one.
int64_t wordOf(const c10::IValue& number) {
  return number.isDouble() ? std::bit_cast<int64_t>(number.toDouble())
         : number.isInt()  ? number.toInt()
         : number.isBool() ? int64_t(number.toBool())
                           : 0;
}

int64_t wordOf(const Tensor& tensor, Tag tag) {
  return pack(
      tag, flagsOf(tensor) | static_cast<int64_t>(tensor.scalar_type()) << 8 | tensor.dim() << 16);
}

}  // namespace

CallSignature::Builder::Builder(const void* op, bool can_plan, bool counts_with_numbers)
    : words_(signature_.words_), counts_with_numbers_(counts_with_numbers), is_valid_(can_plan) {
  if (!is_valid_) {
    return;
  }
  const KernelEnvironment environment = KernelEnvironment::current();
  words_.append({reinterpret_cast<int64_t>(op), static_cast<int64_t>(environment.settings()),
                 static_cast<int64_t>(environment.thread())});
}

void CallSignature::Builder::addTensor(const Tensor& tensor, bool is_new, size_t place,
                                       Tensors earlier) {
  if (!is_valid_) {
    return;
  }
  if (tensor.defined() && tensor.has_storage()) {
    addOverlaps(tensor, earlier);
  }
  addMetadata(tensor, is_new, place);
}

void CallSignature::Builder::beginList(size_t size) {
  words_.push_back(pack(kList, static_cast<int64_t>(size)));
  described_ = words_.size();
}

void CallSignature::Builder::addElement(const Tensor& tensor, bool is_new, size_t place) {
  if (!is_valid_) {
    return;
  }
  if (is_new && isLikeTheOneBefore(tensor)) {
    ++alike_;
    return;
  }
  endRow();
  addMetadata(tensor, is_new, place);
}

void CallSignature::Builder::addNone() {
  endRow();
  words_.push_back(kNone);
}

void CallSignature::Builder::endList() { endRow(); }

void CallSignature::Builder::endRow() {
  if (alike_ > 0) {
    words_.push_back(pack(kAlike, std::exchange(alike_, 0)));
  }
  described_ = words_.size();
}

void CallSignature::Builder::addDevice(c10::Device device) {
  words_.append({kValue, static_cast<int64_t>(std::hash<c10::Device>()(device))});
}

void CallSignature::Builder::addGenerator() { words_.push_back(kGenerator); }

void CallSignature::Builder::addPlain(const c10::IValue& value, const c10::Argument& argument) {
  if (!is_valid_) {
    return;
  }
  if (value.isNone()) {
    words_.push_back(kNone);
  } else if (value.isList() && kindOf(argument) == c10::TypeKind::NumberType) {
    const auto numbers = value.toListRef();
    words_.push_back(pack(kList, static_cast<int64_t>(numbers.size())));
    for (const c10::IValue& number : numbers) {
      addNumber(number);
    }
  } else if (value.isScalar() && takesNumbers(argument)) {
    addNumber(value);
    addOrder(value);
  } else if (value.isInt() || value.isBool()) {
    words_.append({kValue, wordOf(value)});
  } else if (value.isIntList() || value.isBoolList() || value.isDoubleList()) {
    const auto elements = value.toListRef();
    words_.push_back(pack(kList, static_cast<int64_t>(elements.size())));
    for (const c10::IValue& element : elements) {
      words_.push_back(wordOf(element));
    }
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    words_.push_back(pack(kList, static_cast<int64_t>(text.size())));
    words_.append(text.begin(), text.end());
  } else if (value.isDevice()) {
    addDevice(value.toDevice());
  } else {
    is_valid_ = false;
  }
}

void CallSignature::Builder::addMetadata(const Tensor& tensor, bool is_new, size_t place) {
  if (!is_new) {
    words_.push_back(pack(kRepeated, static_cast<int64_t>(place)));
    return;
  }
  if (!tensor.defined()) {
    words_.push_back(kUndefined);
    return;
  }
  const bool is_host_scalar = tensor.is_cpu() && tensor.dim() == 0;
  if (!isPlain(tensor) || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
      !(isOpenReg(tensor) || (is_host_scalar && hasClass(tensor.scalar_type())))) {
    is_valid_ = false;
    return;
  }
  words_.push_back(wordOf(tensor, is_host_scalar ? kHostScalar : kDeviceTensor));
  words_.append(tensor.sizes().begin(), tensor.sizes().end());
  words_.append(tensor.strides().begin(), tensor.strides().end());
  if (is_host_scalar) {
    addNumber(numberOf(tensor));
  }
}

// Whether the words from `described_` on describe the tensor, too.
bool CallSignature::Builder::isLikeTheOneBefore(const Tensor& tensor) const {
  const auto dims = static_cast<size_t>(tensor.dim());
  const c10::ArrayRef<int64_t> words = c10::ArrayRef<int64_t>(words_).slice(described_);
  return words.size() == 1 + 2 * dims && tensor.defined() &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && isOpenReg(tensor) &&
         isPlain(tensor) && words[0] == wordOf(tensor, kDeviceTensor) &&
         words.slice(1, dims) == tensor.sizes() && words.slice(1 + dims) == tensor.strides();
}

// How the tensor's memory overlaps that of earlier tensors on the same storage: kernels refuse some
// overlaps.
void CallSignature::Builder::addOverlaps(const Tensor& tensor, Tensors earlier) {
  TensorImpl* impl = tensor.unsafeGetTensorImpl();
  for (const Tensor* other : earlier) {
    if (other->defined() &&
        other->unsafeGetTensorImpl()->unsafe_storage().is_alias_of(impl->unsafe_storage())) {
      words_.push_back(pack(kOverlap, static_cast<int64_t>(at::get_overlap_status(
                                          other->unsafeGetTensorImpl(), impl))));
    }
  }
}

void CallSignature::Builder::addNumber(const Scalar& number) {
  words_.append({kNumber, static_cast<int64_t>(classOf(number))});
}

void CallSignature::Builder::addNumber(const c10::IValue& number) {
  addNumber(number.toScalar());
  if (counts_with_numbers_) {
    words_.push_back(wordOf(number));
  }
}

// How the number compares with the one before it.
void CallSignature::Builder::addOrder(const c10::IValue& number) {
  if (number.isComplexDouble()) {
    return;
  }
  const auto value = number.toScalar().toDouble();
  if (previous_.has_value()) {
    words_.push_back(static_cast<int64_t>(orderOf(*previous_, value)));
  }
  previous_ = value;
}

const CallSignature* CallSignature::Builder::finish() {
  if (!is_valid_) {
    return nullptr;
  }
  for (const int64_t word : words_) {
    signature_.hash_ = c10::hash_combine(signature_.hash_, static_cast<size_t>(word));
  }
  return &signature_;
}

}  // namespace at::openreg
