// Step 7 of docs/bring_up.md, operators without a kernel. In full: csrc/aten/fallback/Fallback.cpp.
#include <ATen/native/CPUFallback.h>

#include <set>

#include "../runtime/Generator.h"
#include "Operators.h"

namespace chip {

// docs: minimal-fallback
// Indices and lengths may be on the host, as on CUDA.
static bool takesHostTensors(const std::string& name) {
  static const std::set<std::string> names{"aten::index", "aten::_index_put_impl_",
                                           "aten::_pack_padded_sequence"};
  return names.count(name) != 0;
}

// The one device of the tensors; those of the host may have no dimensions, as numbers have none.
static c10::Device deviceOf(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> device;
  std::optional<c10::Device> host;
  const auto add = [&](const Tensor& tensor) {
    if (!tensor.defined()) return;
    auto& place = tensor.is_cpu() ? host : device;
    if (tensor.is_cpu() && (tensor.dim() == 0 || takesHostTensors(op.schema().name()))) return;
    TORCH_CHECK(!place || *place == tensor.device(),
                "Expected all tensors to be on the same device, "
                "but found at least two devices, ",
                *place, " and ", tensor.device(), "!");
    place = tensor.device();
  };
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) add(argument.toTensor());
    if (argument.isDevice() && !device) device = argument.toDevice();
    if (argument.isTensorList()) {
      for (const Tensor& tensor : argument.toTensorVector()) add(tensor);
    }
  }
  TORCH_CHECK(!device || !host,
              "Expected all tensors to be on the same device, but found at least "
              "two devices, ",
              *device, " and cpu!");
  return device && device->has_index() ? *device : c10::Device(kType, current_device());
}

// torch copies the arguments to the host, where it waits for the stream, calls the CPU's kernel,
// and copies results and written arguments back.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema().arguments();
  const c10::Device device = deviceOf(op, torch::jit::last(*stack, schema.size()));
  const c10::DeviceGuard guard(device);
  for (size_t i = 0; i < schema.size(); ++i) {
    c10::IValue& argument = torch::jit::peek(*stack, i, schema.size());
    if (schema[i].type()->str() == "Generator?") {
      const auto given = argument.toOptional<at::Generator>();
      const at::Generator& chosen =
          given && given->defined() ? *given : getDefaultGenerator(device.index());
      TORCH_CHECK(chosen.device().type() == kType, "Expected a '", kName,
                  "' device type for generator but found '", chosen.device(), "'");
      argument = chosen.get<GeneratorImpl>()->host;
    }
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
// docs: end

}  // namespace chip
