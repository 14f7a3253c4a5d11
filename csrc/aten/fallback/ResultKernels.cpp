#include "csrc/aten/fallback/ResultKernels.h"

#include <ATen/native/layer_norm.h>
#include <ATen/native/transformers/attention.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace at::openreg {

// A stub chooses among the kernels that torch was built with. setup.py asks the installed torch
// which these are, and defines this if it knows them. Otherwise results are copied.
#ifdef OPENREG_HAS_KERNEL_STUBS

namespace {

using Arguments = c10::ArrayRef<c10::IValue>;
using Results = c10::ArrayRef<Tensor>;

Tensor tensorAt(Arguments arguments, size_t index) {
  return arguments[index].isNone() ? Tensor() : arguments[index].toTensor();
}

Tensor contiguousAt(Arguments arguments, size_t index) {
  const Tensor tensor = tensorAt(arguments, index);
  return tensor.defined() ? tensor.contiguous() : tensor;
}

// docs: result-kernel
// native_layer_norm(input, normalized_shape, weight, bias, eps) -> (output, mean, rstd)
void layerNorm(Arguments arguments, Results results) {
  const Tensor input = contiguousAt(arguments, 0);
  const Tensor weight = contiguousAt(arguments, 2);
  const Tensor bias = contiguousAt(arguments, 3);
  const auto [rows, columns] =
      at::native::_check_layer_norm_inputs(input, arguments[1].toIntVector(), weight, bias);
  Tensor output = results[0];
  Tensor mean = results[1];
  Tensor rstd = results[2];
  at::native::LayerNormKernel(kCPU, input, weight, bias, rows, columns, arguments[4].toDouble(),
                              &output, &mean, &rstd);
}
// docs: end

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias,
// output_mask) -> (grad_input, grad_weight, grad_bias)
void layerNormBackward(Arguments arguments, Results results) {
  const Tensor input = contiguousAt(arguments, 1);
  const Tensor weight = contiguousAt(arguments, 5);
  const auto [rows, columns] = at::native::_check_layer_norm_inputs(
      input, arguments[2].toIntVector(), weight, tensorAt(arguments, 6));
  Tensor grad_input = results[0];
  Tensor grad_weight = results[1];
  Tensor grad_bias = results[2];
  if (rows == 0) {
    grad_weight.zero_();
    grad_bias.zero_();
    return;
  }
  at::native::LayerNormBackwardKernel(kCPU, contiguousAt(arguments, 0), input,
                                      contiguousAt(arguments, 3), contiguousAt(arguments, 4),
                                      weight, rows, columns, &grad_input, &grad_weight, &grad_bias);
}

// The kernels of attention have sequence and head the other way round than the operators.
Tensor swapped(const Tensor& tensor) { return tensor.transpose(1, 2); }

// _scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, attn_mask,
// scale) -> (output, logsumexp)
void flashAttention(Arguments arguments, Results results) {
  at::native::flash_attention_kernel(
      kCPU, swapped(results[0]), swapped(results[1]), tensorAt(arguments, 0),
      tensorAt(arguments, 1), tensorAt(arguments, 2), arguments[3].toDouble(),
      arguments[4].toBool(), arguments[5].toOptional<Tensor>(), arguments[6].toOptional<double>());
}

// _scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key, value, out,
// logsumexp, dropout_p, is_causal, attn_mask, scale) -> (grad_query, grad_key, grad_value)
void flashAttentionBackward(Arguments arguments, Results results) {
  for (const Tensor& result : results) {
    result.zero_();  // the kernel adds to them
  }
  const auto swapped_at = [&](size_t index) { return swapped(tensorAt(arguments, index)); };
  at::native::flash_attention_backward_kernel(
      kCPU, swapped(results[0]), swapped(results[1]), swapped(results[2]), swapped_at(0),
      swapped_at(1), swapped_at(2), swapped_at(3), swapped_at(4), swapped_at(5),
      arguments[6].toDouble(), arguments[7].toBool(), arguments[8].toOptional<Tensor>(),
      arguments[9].toOptional<double>());
}

constexpr std::array<std::pair<std::string_view, ResultKernel>, 4> kKernels = {{
    {"aten::_scaled_dot_product_flash_attention_for_cpu", &flashAttention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &flashAttentionBackward},
    {"aten::native_layer_norm", &layerNorm},
    {"aten::native_layer_norm_backward", &layerNormBackward},
}};

}  // namespace

ResultKernel findResultKernel(std::string_view name) {
  const auto* found = std::find_if(kKernels.begin(), kKernels.end(),
                                   [&](const auto& entry) { return entry.first == name; });
  return found == kKernels.end() ? nullptr : found->second;
}

std::vector<std::string_view> resultKernelNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, kernel] : kKernels) {
    names.push_back(name);
  }
  return names;
}

#else

ResultKernel findResultKernel(std::string_view /*name*/) { return nullptr; }

std::vector<std::string_view> resultKernelNames() { return {}; }

#endif

}  // namespace at::openreg
