// The functions called by C++ wrappers; see torch_openreg/inductor/wrapper.h.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/Synchronized.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <exception>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "csrc/extras/inductor/InductorKernel.h"
#include "torch_openreg/core/DeviceKeys.h"
#include "torch_openreg/core/Functions.h"
#include "torch_openreg/core/Macros.h"
#include "torch_openreg/inductor/wrapper.h"

namespace at::openreg {
namespace {

using c10::TypeKind;

template <typename Function>
const char* withErrorText(const Function& function) {
  thread_local std::string text;
  try {
    function();
    return nullptr;
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  return text.c_str();
}

const at::Tensor& tensorOf(const void* handle) { return *static_cast<const at::Tensor*>(handle); }

// Reads the values of a call in order.
class ValueReader {
 public:
  ValueReader(const c10::FunctionSchema& schema, c10::ArrayRef<OpenRegValue> values)
      : schema_(schema), values_(values) {}

  size_t left() const { return values_.size() - position_; }

  const OpenRegValue& next() {
    TORCH_CHECK(position_ < values_.size(), schema_, ": expected more values than ",
                values_.size());
    return values_[position_++];
  }

  c10::IValue read(const c10::TypePtr& type) {
    if (type->kind() == TypeKind::OptionalType) {
      return readOptional(type->castRaw<c10::OptionalType>()->getElementType());
    }
    if (type->kind() == TypeKind::ListType) {
      const OpenRegValue& first = next();
      return listOf(type->castRaw<c10::ListType>()->getElementType(), first, readLength());
    }
    if (type->kind() == TypeKind::DeviceObjType) {
      const auto device_type = static_cast<c10::DeviceType>(integerOf(next()));
      return c10::Device(device_type, static_cast<c10::DeviceIndex>(integerOf(next())));
    }
    return scalarOf(type, next());
  }

 private:
  [[noreturn]] void refuse(const char* expected, const OpenRegValue& value) const {
    TORCH_CHECK(false, schema_, ": expected ", expected, " as value ", position_ - 1,
                ", got one of kind ", static_cast<int32_t>(value.kind));
  }

  int64_t integerOf(const OpenRegValue& value) const {
    if (value.kind != OpenRegValue::Integer) {
      refuse("an integer", value);
    }
    return value.integer;
  }

  size_t readLength() { return static_cast<size_t>(integerOf(next())); }

  c10::IValue scalarOf(const c10::TypePtr& type, const OpenRegValue& value) const {
    switch (type->kind()) {
      case TypeKind::TensorType:
        if (value.kind != OpenRegValue::Tensor && value.kind != OpenRegValue::Null) {
          refuse("a tensor", value);
        }
        return value.pointer == nullptr ? at::Tensor() : tensorOf(value.pointer);
      case TypeKind::BoolType:
      case TypeKind::SymBoolType:
        return integerOf(value) != 0;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
      case TypeKind::ScalarTypeType:
      case TypeKind::LayoutType:
      case TypeKind::MemoryFormatType:
        return integerOf(value);
      case TypeKind::FloatType:
      case TypeKind::SymFloatType:
        return value.kind == OpenRegValue::Number ? value.number
                                                  : static_cast<double>(integerOf(value));
      case TypeKind::NumberType:
        return value.kind == OpenRegValue::Number ? c10::IValue(value.number)
                                                  : c10::IValue(integerOf(value));
      case TypeKind::StringType:
        if (value.kind != OpenRegValue::Text) {
          refuse("a string", value);
        }
        return std::string(static_cast<const char*>(value.pointer));
      default:
        refuse(type->str().c_str(), value);
    }
  }

  c10::IValue readOptional(const c10::TypePtr& type) {
    const OpenRegValue& value = next();
    if (type->kind() == TypeKind::ListType) {
      const size_t length = readLength();
      return value.kind == OpenRegValue::Null
                 ? c10::IValue()
                 : listOf(type->castRaw<c10::ListType>()->getElementType(), value, length);
    }
    if (type->kind() == TypeKind::DeviceObjType) {
      const int64_t index = integerOf(next());
      if (value.kind == OpenRegValue::Null) {
        return {};
      }
      return c10::Device(static_cast<c10::DeviceType>(elementOf(value, 0).integer),
                         static_cast<c10::DeviceIndex>(index));
    }
    return value.kind == OpenRegValue::Null ? c10::IValue() : scalarOf(type, elementOf(value, 0));
  }

  // Dereferences a pointer value.
  OpenRegValue elementOf(const OpenRegValue& value, size_t index) const {
    OpenRegValue element;
    switch (value.kind) {
      case OpenRegValue::Integers:
        element.kind = OpenRegValue::Integer;
        element.integer = static_cast<const int64_t*>(value.pointer)[index];
        return element;
      case OpenRegValue::Flags:
        element.kind = OpenRegValue::Integer;
        element.integer = static_cast<const int32_t*>(value.pointer)[index];
        return element;
      case OpenRegValue::Numbers:
        element.kind = OpenRegValue::Number;
        element.number = static_cast<const double*>(value.pointer)[index];
        return element;
      case OpenRegValue::Tensors:
        element.kind = OpenRegValue::Tensor;
        element.pointer = static_cast<const AtenTensorHandle*>(value.pointer)[index];
        return element;
      case OpenRegValue::TensorPointers: {
        const auto* handle = static_cast<const AtenTensorHandle* const*>(value.pointer)[index];
        element.kind = OpenRegValue::Tensor;
        element.pointer = handle == nullptr ? nullptr : *handle;
        return element;
      }
      default:
        refuse("a pointer to values", value);
    }
  }

  c10::IValue listOf(const c10::TypePtr& type, const OpenRegValue& value, size_t length) const {
    const bool is_optional = type->kind() == TypeKind::OptionalType;
    const c10::TypePtr element_type =
        is_optional ? type->castRaw<c10::OptionalType>()->getElementType() : type;
    c10::impl::GenericList list(type);
    list.reserve(length);
    for (size_t i = 0; i < length; ++i) {
      const OpenRegValue element = elementOf(value, i);
      const bool is_absent =
          is_optional && element.kind == OpenRegValue::Tensor && element.pointer == nullptr;
      list.push_back(is_absent ? c10::IValue() : scalarOf(element_type, element));
    }
    return list;
  }

  const c10::FunctionSchema& schema_;
  const c10::ArrayRef<OpenRegValue> values_;
  size_t position_ = 0;
};

// docs: call-operator
void callOperator(const char* name, const char* overload, c10::ArrayRef<OpenRegValue> values) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  const c10::FunctionSchema& schema = handle.schema();
  ValueReader reader(schema, values);
  const auto& arguments = schema.arguments();
  torch::jit::Stack stack(arguments.size());
  for (const bool is_out : {true, false}) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].is_out() == is_out) {
        stack[i] = reader.read(arguments[i].type());
      }
    }
  }
  handle.callBoxed(stack);
  // docs: end
  if (reader.left() == 0) {
    return;  // all results are arguments
  }
  TORCH_CHECK(reader.left() == stack.size(), schema, ": expected places for ", stack.size(),
              " results, got ", reader.left());
  for (c10::IValue& result : stack) {
    const OpenRegValue& place = reader.next();
    if (place.kind == OpenRegValue::Null) {
      continue;
    }
    void* address = const_cast<void*>(place.pointer);
    if (result.isTensor() && place.kind == OpenRegValue::Tensors) {
      *static_cast<AtenTensorHandle*>(address) =
          torch::aot_inductor::new_tensor_handle(std::move(result).toTensor());
    } else if (result.isInt() && place.kind == OpenRegValue::Integers) {
      *static_cast<int64_t*>(address) = result.toInt();
    } else {
      TORCH_CHECK(false, schema, ": expected results that are tensors or integers, got ",
                  result.tagKind());
    }
  }
}

void launchKernel(const GeneratedKernel& kernel, int32_t device,
                  c10::ArrayRef<OpenRegValue> values) {
  GeneratedArguments arguments(kernel, c10::openreg::resolveDeviceIndex(device));
  for (const OpenRegValue& value : values) {
    switch (value.kind) {
      case OpenRegValue::Integer:
        arguments.addInteger(value.integer);
        break;
      case OpenRegValue::Number:
        arguments.addNumber(value.number);
        break;
      case OpenRegValue::HostScalar:
        arguments.addHostScalar(tensorOf(value.pointer));
        break;
      case OpenRegValue::Tensor:
        arguments.addTensor(tensorOf(value.pointer));
        break;
      default:
        TORCH_CHECK(false, kernel.name(), ": expected tensors and numbers, got a value of kind ",
                    static_cast<int32_t>(value.kind));
    }
  }
  kernel.launch(arguments);
}

const char* getKernelOfWrapper(const char* name, OpenRegKernelCall call, const char* parameters,
                               const void** kernel) {
  return withErrorText([&] {
    Dl_info library;
    // Keeps the library loaded: the stream may call the kernel, and a graph may keep it, after its
    // wrapper was destroyed.
    TORCH_CHECK(dladdr(reinterpret_cast<void*>(call), &library) != 0 &&
                    dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr,
                name, ": expected the kernel of a loaded library");
    *kernel = &inductorKernel(name, call, parameters);
  });
}

const char* launchForWrapper(const void* kernel, int32_t device, const OpenRegValue* values,
                             size_t count) {
  return withErrorText(
      [&] { launchKernel(*static_cast<const GeneratedKernel*>(kernel), device, {values, count}); });
}

const char* callForWrapper(const char* name, const char* overload, const OpenRegValue* values,
                           size_t count) {
  return withErrorText([&] { callOperator(name, overload, {values, count}); });
}

// The memory of programs' weights, by address.
using Weights = std::unordered_map<const void*, at::Tensor>;

// Leaked, because programs may exist until the process ends.
c10::Synchronized<Weights>& weights() {
  static auto* instance = new c10::Synchronized<Weights>;
  return *instance;
}

const char* allocateWeights(size_t size_bytes, void** memory) {
  return withErrorText([&] {
    const auto options = at::TensorOptions(c10::openreg::kDeviceType).dtype(at::kByte);
    at::Tensor block = at::empty({static_cast<int64_t>(size_bytes)}, options);
    *memory = block.mutable_data_ptr();
    weights().withLock([&](Weights& blocks) { blocks[*memory] = std::move(block); });
  });
}

void freeWeights(void* memory) {
  // The result, if there is one, is freed without the lock.
  std::ignore = weights().withLock([&](Weights& blocks) { return blocks.extract(memory); });
}

const char* copyWeights(void* memory, size_t offset, const void* source, size_t size_bytes,
                        c10::DeviceType source_type) {
  return withErrorText([&] {
    const auto size = static_cast<int64_t>(size_bytes);
    const at::Tensor block =
        weights().withLock([&](const Weights& blocks) { return blocks.at(memory); });
    const at::Tensor given = at::from_blob(const_cast<void*>(source), {size},
                                           at::TensorOptions(source_type).dtype(at::kByte));
    TORCH_CHECK(given.is_cpu() || given.device() == block.device(),
                "update_constant_buffer: expected tensors and memory for them on one device, got ",
                given.device(), " and ", block.device(), " (the current device)");
    block.narrow(0, static_cast<int64_t>(offset), size).copy_(given);
  });
}

const char* copyWeightsFromHost(void* memory, size_t offset, const void* source,
                                size_t size_bytes) {
  return copyWeights(memory, offset, source, size_bytes, c10::DeviceType::CPU);
}

const char* copyWeightsOnDevice(void* memory, size_t offset, const void* source,
                                size_t size_bytes) {
  return copyWeights(memory, offset, source, size_bytes, c10::openreg::kDeviceType);
}

}  // namespace

extern "C" OPENREG_EXPORT const OpenRegWrapperFunctions* openreg_wrapper_functions() {
  static constexpr OpenRegWrapperFunctions table = {
      OPENREG_WRAPPER_VERSION, &getKernelOfWrapper, &launchForWrapper,    &callForWrapper,
      &allocateWeights,        &freeWeights,        &copyWeightsFromHost, &copyWeightsOnDevice};
  return &table;
}

}  // namespace at::openreg
