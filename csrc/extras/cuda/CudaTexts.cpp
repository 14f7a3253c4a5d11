#include "csrc/extras/cuda/CudaTexts.h"

#include <c10/core/ScalarType.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

namespace at::openreg {
namespace {

using Pair = std::pair<const char*, const char*>;

// Kernels in texts such as `"silu_cpu" not implemented for 'Long'`, whose name on CUDA does not
// have "cuda" in place of "cpu" alone. As regular expressions.
constexpr std::array kKernels = {
    Pair("GeluKernelImpl", "GeluCUDAKernelImpl"),
    Pair("_segment_reduce_(?:lengths|offsets)_cpu_kernel1", "_segment_reduce_cuda_kernel1"),
    Pair("_segment_reduce_cpu", "segment_reduce_cuda"),
    Pair("adaptive_(avg|max)_pool([23])d(?:_cpu)?", "adaptive_$1_pool$2d_cuda"),
    Pair("add_stub", "ufunc_add_CUDA"),
    Pair("addc(div|mul)_cpu_out", "addc$1_cuda"),
    Pair("(addmm|bmm)_sparse_dense", "$1_sparse_cuda"),
    Pair("addmm_out_sparse_csr_impl_mkl", "spmm"),
    Pair("addmm_out_sparse_csr_impl_mkl_sparse", "spgemm"),
    Pair("addmv_out_sparse_csr_impl_mkl", "addmv_out_sparse_csr_cuda_impl"),
    Pair("batch_norm", "batch_norm_stats_cuda"),
    Pair("bernoulli_(scalar|tensor)_cpu_(self_)?", "bernoulli_$1_cuda_$2"),
    Pair("binary_cross_entropy", "binary_cross_entropy_out_cuda"),
    Pair("cadd_sparse", "add_out_sparse_cuda"),
    Pair("cdist", "cdist_cuda"),
    Pair("clamp_min_scalar_cpu", "clamp_scalar_cuda"),
    Pair("cross|digamma|exp2|polygamma|pow|trigamma", "$&_cuda"),
    Pair("cum(prod|sum)_out_cpu", "cum$1_cuda"),
    Pair("div_cpu(?:_reduced_float)?", "div_true_cuda"),
    Pair("(.*)_vml_cpu", "$1_cuda"),
    Pair("compute_indices_weights_nearest", "upsample_nearest2d_out_frame"),
    Pair("fractional_max_pool2d_out_frame", "fractional_max_pool2d_out_cuda_frame"),
    Pair("grid_sampler_([23])d_cpu_kernel_impl", "grid_sampler_$1d_cuda"),
    Pair("grid_sampler([23])d_cpu", "grid_sampler_$1d_cuda"),
    Pair("gt_cpu|ge_cpu|lt_cpu|le_cpu", "compare_cuda"),
    Pair("index_add_", "index_add"),
    Pair("index_func_", "index_reduce"),
    Pair("lerp_kernel_(?:scalar|tensor)", "lerp_cuda"),
    Pair("linalg_eig_out_cpu", "linalg_eig_cuda"),
    Pair("log_sigmoid_cpu", "log_sigmoid_forward_cuda"),
    Pair("(?:log_)?softmax_(?:lastdim_)?kernel_impl", "host_softmax"),
    Pair("softmax_backward_(?:lastdim_)?kernel_impl", "host_softmax_backward"),
    Pair("logcumsumexp_out_cpu", "logcumsumexp_cuda"),
    Pair("masked_fill|masked_scatter", "$&_"),
    Pair("masked_select", "index_cuda"),
    Pair("(max|min)_all", "$1_all_cuda"),
    Pair("max_unpool([23])d(?:_channels_last)?", "max_unpooling$1d_forward_kernel"),
    Pair("median_out", "median_out_impl"),
    Pair("mode_cpu", "cuda_mode"),
    Pair("multi_margin_loss_cpu_kernel", "multi_margin_loss_cuda"),
    Pair("multilabel_margin_loss_forward_out_frame", "multilabel_margin_loss_forward_kernel"),
    Pair("multinomial", "multinomial_kernel_cuda"),
    Pair("nll_loss_out_frame", "nll_loss_forward_reduce_cuda_kernel_2d"),
    Pair("nonzero_count_cpu", "nonzero_cuda"),
    Pair("ormqr_cpu", "orgmr_cuda"),
    Pair("pdist", "pdist_cuda"),
    Pair("prod_out_cpu", "prod_cuda"),
    Pair("reflection_pad([13])d", "reflection_pad$1d_out"),
    Pair("reflection_pad2d", "reflection_pad2d_out_template"),
    Pair("replication_pad([123])d", "replication_pad$1d_cuda"),
    Pair("rms_norm", "LayerNormKernelImpl"),
    Pair("sorting_kernel_method_name", "sortKeyValueInplace"),
    Pair("topk_cpu", "topk_out_cuda"),
    Pair("trace", "sum_cuda"),
    Pair("tri[lu]", "triu_tril_cuda_template"),
    Pair("tri[lu]_indices", "$&_cuda"),
    Pair("upsample_nearest([123])d_channels_last", "upsample_nearest$1d_out_frame"),
    Pair("(.*)_cpu(?:_reduced_float)?", "$1_cuda"),
};

// Other texts: regular expressions, and what replaces each match.
constexpr std::array kTexts = {
    Pair(
        "from the '(\\w*)CPU' backend\\. This could be because the operator doesn't exist for this "
        "backend",
        "from the '$1CUDA' backend. This could be because the operator doesn't exist for this "
        "backend"),
    Pair("computation on CPU is not implemented for", "computation on CUDA is not implemented for"),
    Pair("expected m1 and m2 to have", "expected mat1 and mat2 to have"),
    Pair("expected target dtype to be Long or Byte, but got (\\w+)",
         "expected scalar type Long but found $1"),
    Pair("masked_scatter: expected self and source to have same dtypes but got",
         "masked_scatter_: expected self and source to have same dtypes but got "),
    Pair("same as that of the input tensor \\((.*)\\) but got indices tensor with shape:",
         "$1 but got:"),
    Pair("shape of indices to be \\[", "shape of indices to be: ["),
    Pair("trace: expected a matrix, but got tensor with dim \\d+", "expected a matrix"),
    Pair("max_pool3d_with_indices_out_cpu_template", "max_pool3d_with_indices_out_cuda_template"),
    Pair("but got torch\\.(\\w+Tensor) instead", "but got torch.cuda.$1 instead"),
    Pair("but got CPU(\\w+)Type instead", "but got CUDA$1Type instead"),
    Pair("\\(while checking arguments for embedding_bag\\)",
         "(while checking arguments for embedding_bag_cuda)"),
};

// Texts whose exception has another class on CUDA: NotImplementedError or RuntimeError. As regular
// expressions for the whole text.
constexpr std::array kNotImplementedErrors = {
    Pair("sparse_sampled_addmm: Expected self to be a floating-point or complex tensor, but got "
         "(\\w+)",
         "\"sampled_addmm_out_sparse_csr\" not implemented for '$1'"),
    Pair("std_var_all: Unsupported dtype (\\w+)", "\"std_cuda\" not implemented for '$1'"),
};
constexpr std::array kRuntimeErrors = {
    Pair("\"bernoulli_tensor_cpu_(?:p|self)_\" not implemented for '(?!Float)(\\w+)'",
         "expected probabilities tensor to have floating type, got $1"),
};

// A text that ends with a dtype, as C++ or as torch calls it.
struct TextWithDtype {
  std::string_view of_cpu;
  std::string_view of_cuda;
  bool has_cpp_name;  // the CPU's; CUDA's then has torch's
};
constexpr std::array kTextsWithDtype = {
    TextWithDtype{"masked_fill_ only supports boolean masks, but got mask with dtype ",
                  "masked_fill only supports boolean masks, but got dtype ", true},
    TextWithDtype{"masked_scatter_ only supports boolean masks, but got mask with dtype ",
                  "masked_scatter_ only supports boolean masks, but got mask with dtype ", false},
};

std::optional<std::string> withNameOfDtype(std::string_view text) {
  for (const TextWithDtype& known : kTextsWithDtype) {
    if (!text.starts_with(known.of_cpu)) {
      continue;
    }
    const std::string_view name = text.substr(known.of_cpu.size());
    for (int i = 0; i < static_cast<int>(ScalarType::NumOptions); ++i) {
      const auto dtype = static_cast<ScalarType>(i);
      const std::string_view of_torch = c10::toString(dtype);
      const std::string_view of_cpp =
          dtype == ScalarType::Undefined ? "" : c10::scalarTypeToTypeMeta(dtype).name();
      if (name == (known.has_cpp_name ? of_cpp : of_torch)) {
        return c10::str(known.of_cuda, known.has_cpp_name ? of_torch : of_cpp);
      }
    }
  }
  return std::nullopt;
}

// What replaces a whole text, by the first pair that matches it.
std::optional<std::string> replaced(const std::string& text, c10::ArrayRef<Pair> pairs) {
  for (const auto& [of_cpu, of_cuda] : pairs) {
    if (const std::regex pattern(of_cpu); std::regex_match(text, pattern)) {
      return std::regex_replace(text, pattern, of_cuda);
    }
  }
  return std::nullopt;
}

std::string inWordsOf(const std::string& text) {
  if (std::optional<std::string> found = withNameOfDtype(text)) {
    return *std::move(found);
  }
  static const std::regex not_implemented("^\"(\\w+)\" not implemented for");
  if (std::smatch match; std::regex_search(text, match, not_implemented)) {
    const std::string kernel = match[1];
    const std::string of_cuda = replaced(kernel, kKernels).value_or(kernel);
    return '"' + of_cuda + text.substr(kernel.size() + 1);
  }
  std::string result = text;
  for (const auto& [of_cpu, of_cuda] : kTexts) {
    result = std::regex_replace(result, std::regex(of_cpu), of_cuda);
  }
  return result;
}

}  // namespace

void throwInWordsOfCuda(const c10::Error& error) {
  const bool is_not_implemented = typeid(error) == typeid(c10::NotImplementedError);
  if (!is_not_implemented && typeid(error) != typeid(c10::Error)) {
    return;
  }
  if (auto text = replaced(error.msg(), kNotImplementedErrors); text && !is_not_implemented) {
    throw c10::NotImplementedError(*std::move(text), error.backtrace());
  }
  if (auto text = replaced(error.msg(), kRuntimeErrors); text && is_not_implemented) {
    throw c10::Error(*std::move(text), error.backtrace());
  }
  std::string text = inWordsOf(error.msg());
  if (text == error.msg()) {
    return;
  }
  if (is_not_implemented) {
    throw c10::NotImplementedError(std::move(text), error.backtrace());
  }
  throw c10::Error(std::move(text), error.backtrace());
}

}  // namespace at::openreg
