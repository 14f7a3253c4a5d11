// The gradient of group norm for a channels_last input.
//
// torch's derivative asks whether the device is the CPU: there it keeps the memory format of the
// input, on other devices it makes the input contiguous first. The gradients then differ in their
// strides and in the last bits. So on devices of type openreg, such a call has a derivative that
// does what torch's does on the CPU. All other calls, and all with device type cuda, have torch's.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "torch_openreg/core/DeviceKeys.h"

namespace at::openreg {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Results = std::tuple<Tensor, Tensor, Tensor>;
constexpr size_t kArguments = 8;  // three tensors, five numbers

// The numbers of a call.
struct Numbers {
  int64_t batch;
  int64_t channels;
  int64_t positions;
  int64_t groups;
  double eps;
};

Results callGroupNorm(const Tensor& input, const std::optional<Tensor>& weight,
                      const std::optional<Tensor>& bias, const Numbers& numbers) {
  return at::native_group_norm(input, weight, bias, numbers.batch, numbers.channels,
                               numbers.positions, numbers.groups, numbers.eps);
}

class ChannelsLastGroupNorm : public torch::autograd::Function<ChannelsLastGroupNorm> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& input,
                               const std::optional<Tensor>& weight,
                               const std::optional<Tensor>& bias, int64_t batch, int64_t channels,
                               int64_t positions, int64_t groups, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [result, mean, inverse_deviation] =
        callGroupNorm(input, weight, bias, {batch, channels, positions, groups, eps});
    context->save_for_backward(
        {input, weight.value_or(Tensor()), bias.value_or(Tensor()), mean, inverse_deviation});
    context->set_materialize_grads(false);
    context->saved_data["numbers"] = std::tuple(batch, channels, positions, groups, eps);
    return {result, mean, inverse_deviation};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto [batch, channels, positions, groups, eps] =
        context->saved_data["numbers"].to<std::tuple<int64_t, int64_t, int64_t, int64_t, double>>();
    const Numbers numbers{batch, channels, positions, groups, eps};
    // Only tensors that were given are inputs, with numbers in their order.
    std::array<bool, 3> wanted{};
    size_t number = 0;
    for (size_t index = 0; index < wanted.size(); ++index) {
      wanted[index] = saved[index].defined() && context->needs_input_grad(number++);
    }
    const bool is_first_order =
        !c10::GradMode::is_enabled() && !gradients[1].defined() && !gradients[2].defined();
    if (!gradients[0].defined() && !gradients[1].defined() && !gradients[2].defined()) {
      return variable_list(kArguments);
    }
    variable_list computed = is_first_order ? firstOrder(gradients[0], saved, numbers, wanted)
                                            : higherOrder(gradients, saved, numbers, wanted);
    computed.resize(kArguments);  // the numbers have no gradient
    return computed;
  }

 private:
  static variable_list firstOrder(const Tensor& gradient, const variable_list& saved,
                                  const Numbers& numbers, std::array<bool, 3> wanted) {
    const Tensor& input = saved[0];
    const auto format = input.suggest_memory_format();
    // The CPU's kernel for such an input writes its gradient whether or not it is wanted: without
    // memory for it, torch ends the process.
    auto [of_input, of_weight, of_bias] = at::native_group_norm_backward(
        gradient.contiguous(format), input.contiguous(format), saved[3], saved[4], saved[1],
        numbers.batch, numbers.channels, numbers.positions, numbers.groups,
        {true, wanted[1], wanted[2]});
    return {wanted[0] ? of_input : Tensor(), of_weight, of_bias};
  }

  // By torch's derivative, which is then made of differentiable operators, of the same function for
  // a contiguous input.
  static variable_list higherOrder(const variable_list& gradients, const variable_list& saved,
                                   const Numbers& numbers, std::array<bool, 3> wanted) {
    const bool creates_graph = c10::GradMode::is_enabled();
    const at::AutoGradMode grad_mode(true);
    const auto [result, mean, inverse_deviation] =
        callGroupNorm(saved[0].contiguous(), saved[1], saved[2], numbers);
    variable_list outputs;
    variable_list given;
    for (const auto& [output, gradient] :
         {std::pair(result, gradients[0]), std::pair(mean, gradients[1]),
          std::pair(inverse_deviation, gradients[2])}) {
      if (gradient.defined()) {
        outputs.push_back(output);
        given.push_back(gradient);
      }
    }
    variable_list inputs;
    for (size_t index = 0; index < wanted.size(); ++index) {
      if (wanted[index]) {
        inputs.push_back(saved[index]);
      }
    }
    variable_list computed =
        torch::autograd::grad(outputs, inputs, given, /*retain_graph=*/std::nullopt, creates_graph,
                              /*allow_unused=*/true);
    variable_list all(wanted.size());
    auto next = computed.begin();
    for (size_t index = 0; index < wanted.size(); ++index) {
      if (wanted[index]) {
        all[index] = *next++;
      }
    }
    return all;
  }
};

bool requiresGrad(const std::optional<Tensor>& tensor) {
  return tensor.has_value() && tensor->defined() && tensor->requires_grad();
}

bool hasTangent(const std::optional<Tensor>& tensor) {
  return tensor.has_value() && tensor->defined() && tensor->_fw_grad(/*level=*/0).defined();
}

// Whether torch's derivative would differ from that of the CPU. Transforms of torch.func have
// torch's, because they do not support functions such as ours.
bool hasOwnDerivative(const Tensor& input, const std::optional<Tensor>& weight,
                      const std::optional<Tensor>& bias) {
  return input.suggest_memory_format() != MemoryFormat::Contiguous && c10::GradMode::is_enabled() &&
         (requiresGrad(input) || requiresGrad(weight) || requiresGrad(bias)) &&
         !(hasTangent(input) || hasTangent(weight) || hasTangent(bias)) &&
         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
}

void groupNorm(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto first = stack->end() - kArguments;
  const Tensor input = first[0].toTensor();
  const auto weight = first[1].toOptional<Tensor>();
  const auto bias = first[2].toOptional<Tensor>();
  const bool has_symbols = std::any_of(first + 3, stack->end(),
                                       [](const c10::IValue& value) { return value.isSymInt(); });
  if (has_symbols || !hasOwnDerivative(input, weight, bias)) {
    static const c10::SafeKernelFunction torchs =
        op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
    torchs.callBoxed(op, keys, stack);
    return;
  }
  const variable_list results =
      ChannelsLastGroupNorm::apply(input, weight, bias, first[3].toInt(), first[4].toInt(),
                                   first[5].toInt(), first[6].toInt(), first[7].toDouble());
  torch::jit::drop(*stack, kArguments);
  torch::jit::push(*stack, results[0], results[1], results[2]);
}

}  // namespace

OPENREG_LIBRARY_IMPL(aten, AutogradFunctionality, m) {
  if (!c10::openreg::servesCuda()) {
    m.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&groupNorm>());
  }
}

}  // namespace at::openreg
