// Step 7 of docs/bring_up.md, operators without a kernel. In full: csrc/aten/fallback/Fallback.cpp.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/CPUFallback.h>
#include <c10/util/Synchronized.h>

#include "../runtime/Generator.h"
#include "Operators.h"

namespace chip {

// docs: minimal-fallback
// The device that all tensors are on. Those of the host may be numbers, and indices, as on CUDA.
static Device deviceOf(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  static const std::set<std::string> kTakesHostTensors{"aten::index", "aten::_index_put_impl_",
                                                       "aten::_pack_padded_sequence"};
  const bool takes_host = kTakesHostTensors.count(op.schema().name()) != 0;
  std::optional<Device> device;
  const auto visit = [&](const Tensor& tensor) {
    if (!tensor.defined() || (tensor.is_cpu() && (tensor.dim() == 0 || takes_host))) return;
    TORCH_CHECK(!device || *device == tensor.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *device, " and ", tensor.device(), "!");
    device = tensor.device();
  };
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) visit(argument.toTensor());
    if (argument.isTensorList()) std::ranges::for_each(argument.toTensorVector(), visit);
    if (argument.isDevice() && !device) device = argument.toDevice();  // of a factory function
  }
  return device && device->has_index() ? *device : Device(kType, current_device());
}

// Never destroyed, as other threads may count to the very end.
static auto& counts = *new c10::Synchronized<FallbackCounts>;

FallbackCounts fallbackCounts() {
  return counts.withLock([](auto& all) { return all; });
}

// Whether the operator writes running_mean and running_var, which its schema does not mark.
static bool writesRunningStatistics(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string& name = op.schema().name();
  if (name != "aten::native_batch_norm") return name == "aten::batch_norm_update_stats";
  const size_t training = op.schema().argumentIndexWithName("training").value();
  return torch::jit::peek(stack, training, op.schema().arguments().size()).toBool();
}

// torch copies the arguments to the host, where it waits for the stream, calls the CPU's kernel,
// and copies back results and the arguments that the schema marks as written.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const int64_t copied_before = copied_bytes;
  const auto& schema = op.schema().arguments();
  const c10::DeviceGuard guard(deviceOf(op, torch::jit::last(*stack, schema.size())));
  const bool writes_statistics = writesRunningStatistics(op, *stack);
  std::vector<std::pair<Tensor, Tensor>> unmarked;  // on the device, on the host
  for (size_t i = 0; i < schema.size(); ++i) {
    c10::IValue& argument = torch::jit::peek(*stack, i, schema.size());
    if (schema[i].type()->str() == "Generator?") {
      argument = generatorOf(argument.toOptional<at::Generator>(), current_device()).host;
    } else if (schema[i].alias_info() && schema[i].alias_info()->isWrite() && argument.isTensor()) {
      at::assert_no_internal_overlap(argument.toTensor());
    } else if (writes_statistics && schema[i].name().starts_with("running_") &&
               argument.isTensor() && argument.toTensor().defined()) {
      unmarked.emplace_back(argument.toTensor(), argument.toTensor().cpu());
      argument = unmarked.back().second;
    }
  }
  at::native::cpu_fallback(op, stack);
  for (const auto& [there, here] : unmarked) there.copy_(here);
  counts.withLock([&, name = c10::toString(op.operator_name())](FallbackCounts& all) {
    ++all.calls[name];
    all.copied_bytes[name] += copied_bytes - copied_before;
  });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
// docs: end

}  // namespace chip
