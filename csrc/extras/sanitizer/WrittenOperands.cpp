#include "csrc/extras/sanitizer/WrittenOperands.h"

#include <algorithm>
#include <iterator>

namespace c10::openreg {
namespace {

constexpr std::string_view kOnlyWriting[] = {
    "aten::_addmm_activation_",
    "aten::_foreach_copy_",
    "aten::_foreach_zero_",
    "aten::_fused_sgd_",  // does not read the momentum in its first step
    "aten::_index_put_impl_",
    "aten::addbmm_",  // as those below: with beta=0 it is not read
    "aten::addmm_",
    "aten::addmv_",
    "aten::addr_",
    "aten::baddbmm_",
    "aten::bernoulli_",
    "aten::cauchy_",
    "aten::copy_",
    "aten::exponential_",
    "aten::fill_",
    "aten::fill_diagonal_",
    "aten::geometric_",
    "aten::index_copy_",
    "aten::index_fill_",
    "aten::index_put_",
    "aten::index_reduce_",  // with include_self=False it is not read
    "aten::log_normal_",
    "aten::masked_fill_",
    "aten::masked_scatter_",
    "aten::normal_",
    "aten::put_",
    "aten::random_",
    "aten::resize_",
    "aten::scatter_",
    "aten::scatter_reduce_",  // as index_reduce_
    "aten::set_",
    "aten::tril_",
    "aten::triu_",
    "aten::uniform_",
    "aten::zero_",
};

// With beta=0, or include_self=False, their first argument is not read.
constexpr std::string_view kSometimesIgnored[] = {
    "aten::_addmm_activation",
    "aten::addbmm",
    "aten::addmm",
    "aten::addmv",
    "aten::addr",
    "aten::baddbmm",
    "aten::index_reduce",
    "aten::scatter_reduce",
};

constexpr std::string_view kReadingSizes[] = {
    "aten::bernoulli.p", "aten::cauchy",     "aten::exponential",
    "aten::geometric",   "aten::log_normal", "aten::normal_functional",
    "aten::random",      "aten::uniform",
};

std::string_view baseOf(std::string_view kernel) { return kernel.substr(0, kernel.find('.')); }

}  // namespace

bool isOfTorch(std::string_view kernel) { return kernel.starts_with("aten::"); }

bool onlyWrites(std::string_view kernel) {
  const std::string_view base = baseOf(kernel);
  if (!isOfTorch(kernel)) {
    return true;  // unknown
  }
  return std::ranges::any_of(kOnlyWriting, [&](std::string_view one) {
    return base == one || base == one.substr(0, one.size() - 1);
  });
}

bool isInPlace(std::string_view kernel) {
  const std::string_view base = baseOf(kernel);
  return (base.ends_with('_') && !base.ends_with("__")) || base.find("::__i") != base.npos;
}

bool readsOnlySizes(std::string_view kernel) {
  const std::string_view base = baseOf(kernel);
  if (std::ranges::find(kSometimesIgnored, base) != std::end(kSometimesIgnored)) {
    return true;
  }
  return std::ranges::find(kReadingSizes, kernel) != std::end(kReadingSizes);
}

}  // namespace c10::openreg
