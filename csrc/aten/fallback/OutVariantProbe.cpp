#include "csrc/aten/fallback/OutVariantProbe.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/List.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/aten/fallback/BoxedArguments.h"
#include "torch_openreg/aten/KernelEnvironment.h"

namespace at::openreg {
namespace {

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

// A fill pattern that kernels are unlikely to write.
constexpr int kPattern = 0xA5;

// A visitor that copies tensors and their memory.
class Copier {
 public:
  c10::IValue tensor(const Tensor& tensor) { return copyOf(tensor); }
  c10::IValue tensors(c10::ArrayRef<c10::IValue> list) {
    c10::List<Tensor> copies;
    for (const c10::IValue& element : list) {
      copies.push_back(copyOf(element.toTensor()));
    }
    return copies;
  }
  c10::IValue optionalTensors(c10::ArrayRef<c10::IValue> list) {
    c10::List<std::optional<Tensor>> copies;
    for (const c10::IValue& element : list) {
      copies.push_back(element.isNone() ? std::nullopt
                                        : std::optional<Tensor>(copyOf(element.toTensor())));
    }
    return copies;
  }
  c10::IValue device(c10::Device device) { return device; }
  c10::IValue generator(const std::optional<Generator>& generator) { return generator; }
  c10::IValue plain(const c10::IValue& value) { return value; }

 private:
  Tensor copyOf(const Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    Tensor& copy = tensors_[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) {
      copy = tensor.alias();
      copy.unsafeGetTensorImpl()->set_storage_keep_dtype(memoryOf(tensor.storage()));
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        copy.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
    }
    return copy;
  }

  Storage memoryOf(const Storage& storage) {
    Storage& copy = storages_[storage.unsafeGetStorageImpl()];
    if (!copy) {
      copy = Storage(Storage::use_byte_size_t(), storage.nbytes(), c10::GetCPUAllocator(),
                     /*resizable=*/true);
      if (storage.nbytes() > 0) {
        std::memcpy(copy.mutable_data(), storage.data(), storage.nbytes());
      }
    }
    return copy;
  }

  std::unordered_map<const TensorImpl*, Tensor> tensors_;
  std::unordered_map<const StorageImpl*, Storage> storages_;
};

bool hasSameBytes(const Tensor& one, const Tensor& other) {
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) {
    return false;
  }
  const Tensor first = one.resolve_conj().resolve_neg().contiguous();
  const Tensor second = other.resolve_conj().resolve_neg().contiguous();
  return first.numel() == 0 ||
         std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()) == 0;
}

std::vector<Tensor> tensorsAmong(const c10::OperatorHandle& op,
                                 c10::ArrayRef<c10::IValue> arguments) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    visitTensors(arguments[i], op.schema().arguments()[i], [&](const Tensor& tensor) {
      if (tensor.defined()) {
        tensors.push_back(tensor);
      }
    });
  }
  return tensors;
}

bool haveSameBytes(const std::vector<Tensor>& ones, const std::vector<Tensor>& others) {
  return std::equal(ones.begin(), ones.end(), others.begin(), others.end(), &hasSameBytes);
}

// Memory for a result, allocated as by a plan.
Tensor destinationFor(const Tensor& result) {
  Tensor destination = at::has_internal_overlap(result) == at::MemOverlap::Yes
                           ? Tensor(at::detail::empty_cpu(result.sizes(), result.scalar_type()))
                           : Tensor(at::detail::empty_strided_cpu(result.sizes(), result.strides(),
                                                                  result.scalar_type()));
  const Storage& storage = destination.storage();
  if (storage.nbytes() > 0) {
    std::memset(storage.mutable_data(), kPattern, storage.nbytes());
  }
  return destination;
}

// Counts warnings and drops them.
class WarningCounter : public c10::WarningHandler {
 public:
  WarningCounter() : guard_(this) {}

  void process(const c10::Warning& /*warning*/) override { ++count_; }

  int count() const { return count_; }

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
  int count_ = 0;
};

CallPlan::Writing writingToTry(const FallbackOperator& known) {
  if (known.drawsNumbers()) {
    return CallPlan::Writing::ByOperator;
  }
  return known.outVariant().has_value() ? CallPlan::Writing::OutVariant
                                        : CallPlan::Writing::ByOperator;
}

}  // namespace

void callOutVariant(const FallbackOperator& known, torch::jit::Stack arguments,
                    c10::ArrayRef<Tensor> results) {
  arguments.insert(arguments.end(), results.begin(), results.end());
  known.outVariant()->redispatchBoxed(kCpu, &arguments);
}

torch::jit::Stack copiesOf(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  Copier copier;
  torch::jit::Stack copies;
  copies.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    copies.push_back(visitArgument(arguments[i], op.schema().arguments()[i], copier));
  }
  return copies;
}

OutVariantProbe::OutVariantProbe(const FallbackOperator& known, const c10::OperatorHandle& op,
                                 c10::ArrayRef<c10::IValue> arguments)
    : known_(known), op_(op), writing_(writingToTry(known)) {
  if (writing_ != CallPlan::Writing::ByOperator) {
    arguments_ = arguments.vec();
    copies_ = copiesOf(op, arguments);
  }
}

CallPlan::Writing OutVariantProbe::best(c10::ArrayRef<c10::IValue> results) {
  return writing_ != CallPlan::Writing::ByOperator && matches(results)
             ? writing_
             : CallPlan::Writing::ByOperator;
}

bool OutVariantProbe::matches(c10::ArrayRef<c10::IValue> results) {
  const HostKernelScope scope;
  std::vector<Tensor> destinations;
  std::vector<Tensor> given;
  for (const c10::IValue& result : results) {
    destinations.push_back(destinationFor(result.toTensor()));
    // A kernel may give the tensors in this list another storage.
    given.push_back(destinations.back().alias());
  }
  const WarningCounter warnings;
  try {
    callOutVariant(known_, copies_, given);
  } catch (const c10::Error&) {
    return false;  // the operator's own arguments
  }
  if (warnings.count() > 0) {
    return false;  // the operator does not warn, or would warn twice
  }
  for (size_t i = 0; i < destinations.size(); ++i) {
    const Tensor& written = given[i];
    const Tensor& planned = destinations[i];
    if (written.sizes() != planned.sizes() || written.strides() != planned.strides() ||
        written.storage().data() != planned.storage().data() ||
        !hasSameBytes(planned, results[i].toTensor())) {
      return false;
    }
  }
  return haveSameBytes(tensorsAmong(op_, arguments_), tensorsAmong(op_, copies_));
}

std::optional<size_t> firstWrongResult(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                       c10::ArrayRef<Tensor> results) {
  op.redispatchBoxed(kCpu, &arguments);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!hasSameBytes(results[i], arguments[i].toTensor())) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace at::openreg
